"""Where queries and keys stand: from a cache's columns and a caller's positions to what the operator is asked.

Tokens are numbered as they come. Unless callers give positions, a token's position is its number, masks stay formulas
and a backend may know them. With positions of their own (left padding), or in a ring's order, both are written down.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from manyheads.errors import SpecError
from manyheads.layer.caches.base import Kept
from manyheads.ops import bias as biases
from manyheads.ops import masks
from manyheads.ops.layout import ranked
from manyheads.ops.precision import wide
from manyheads.ops.predicates import Both, Dense, Everything, Grid, Padding, Visible
from manyheads.spec import Alibi, AttentionSpec, Causal, Chunk, Cross, RelativeBuckets, Window

__all__ = ["Place", "added_bias", "place", "seen"]


@dataclass(frozen=True, eq=False)
class Place:
    """The spec's mask for one call, and the positions behind it.

    offset      position of the first query, counted from column 0
    query, key  (b or 1, t) and (b or 1, s) positions where they are written down; None: offset + i, and i
    """

    visible: Visible
    offset: int | Tensor
    query: Tensor | None = None
    key: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Standing(Visible):
    """A mask of positions whose queries and keys stand where they say, (b or 1, t) and (b or 1, s)."""

    mask: Visible
    query: Tensor
    key: Tensor
    structural = False

    def tile(self, at: Grid) -> Tensor:
        """The mask at the written positions."""
        return self.mask.tile(stood(at, self.query, self.key))


@dataclass(frozen=True, eq=False)
class StandingBias(biases.Additive):
    """A bias of positions, likewise."""

    bias: biases.Additive
    query: Tensor
    key: Tensor

    def tile(self, at: Grid, dtype: torch.dtype) -> Tensor:
        """The bias at the written positions."""
        return self.bias.tile(stood(at, self.query, self.key), dtype)

    def check(self, *, heads: int) -> None:
        """Raise a SpecError if it does not fit the call."""
        self.bias.check(heads=heads)


def stood(at: Grid, query: Tensor, key: Tensor) -> Grid:
    """The same block of pairs, at other positions."""
    return Grid(at.batch, at.head, query[:, None, at.rows, None], key[:, None, None, at.columns], at.rows, at.columns)


def place(spec: AttentionSpec, kept: Kept, count: int, positions: Tensor | None) -> Place:
    """Where `count` queries, the last of the tokens kept, and the columns stand; positions (b or 1, t) where given."""
    keys, device, mask = kept.keys.shape[2], kept.keys.device, masks.from_spec(spec.mask)
    start = 0 if isinstance(spec.source, Cross) else kept.tokens - count
    offset = _offset(start - kept.first, kept, device)
    written = positions is not None or kept.positions is not None
    if not written and count == 1 and _all(spec, kept):
        mask = masks.everything()
    moved = kept.order is not None or bool(kept.first and isinstance(spec.mask, Chunk))
    if not written and not moved:
        return Place(mask, offset)
    query = start + torch.arange(count, device=device)[None] if positions is None else positions
    key = kept.positions
    if key is None:
        key = (kept.first + torch.arange(keys, device=device) if kept.order is None else kept.order)[None]
    return Place(mask if isinstance(mask, Everything) else Standing(mask, query, key), offset, query, key)


def _all(spec: AttentionSpec, kept: Kept) -> bool:
    """Whether the newest token sees every column, by what its cache holds."""
    if isinstance(kept.tokens, Tensor):
        return False
    if isinstance(spec.mask, Window):
        return kept.keys.shape[2] <= spec.mask.keys
    return isinstance(spec.mask, Causal)


def _offset(offset: int | Tensor, kept: Kept, device: torch.device) -> int | Tensor:
    """In a compiled graph that reads a cache, a tensor: no graph should be made for one length of the sequence."""
    if isinstance(offset, Tensor) or not kept.cached or not torch.compiler.is_compiling():
        return offset
    return torch.full((), offset, device=device)


def padding(visible: Visible | Tensor | None) -> Tensor | None:
    """(b or 1, tokens so far), False for what is no token in any call: the padding in a mask; None where it holds none."""
    if isinstance(visible, Padding):
        return visible.keep
    if type(visible) is not Both:
        return None
    parts = [part for part in (padding(visible.a), padding(visible.b)) if part is not None]
    return parts[0] & parts[1] if len(parts) == 2 else parts[0] if parts else None


def seen(place: Place, visible: Visible | Tensor | None, kept: Kept, *, batch: int, heads: int, count: int) -> Visible:
    """The spec's mask and the caller's, whose key axis counts tokens, together."""
    if visible is None:
        return place.visible
    if isinstance(visible, Tensor):
        visible = masks.dense(visible)
    columns = _columns(kept)
    if isinstance(visible, Padding):
        keep = _along(visible.keep[:, None, None], kept, columns, fill=False)
        return place.visible & Padding(keep[:, 0, 0])
    if columns is not None:
        assert isinstance(kept.tokens, int)
        whole = masks.materialise(
            visible, batch=batch, heads=heads, queries=count, keys=kept.tokens, device=kept.keys.device
        )
        return place.visible & Dense(_taken(whole, columns, fill=False))
    if isinstance(visible, Dense):
        visible = Dense(_along(visible.mask, kept, None, fill=False))
    return place.visible & visible


def added_bias(
    spec: AttentionSpec,
    place: Place,
    kept: Kept,
    *,
    bias: Tensor | None,
    table: Tensor | None,
    count: int,
) -> Tensor | biases.Additive | None:
    """What is added to the logits: the positions' bias, and the caller's, whose key axis counts tokens."""
    given = None if bias is None else _along(bias, kept, _columns(kept), fill=0.0)
    own: Tensor | biases.Additive | None = None
    if isinstance(spec.positions, Alibi):
        slopes = biases.Alibi(biases.alibi_slopes(spec.num_heads, device=kept.keys.device))
        own = slopes if place.query is None or place.key is None else StandingBias(slopes, place.query, place.key)
    elif isinstance(spec.positions, RelativeBuckets) and table is not None:
        own = _bucketed(spec.positions, place, kept, table, count)
    if given is None or own is None:
        return own if given is None else given
    if isinstance(own, biases.Additive):
        own = own.tile(_whole(place, kept, count, spec.num_heads), wide(given.dtype))
    return given + own


def _bucketed(positions: RelativeBuckets, place: Place, kept: Kept, table: Tensor, count: int) -> Tensor:
    """T5's bias (1 or b, h, t, s) from the stack's table (buckets, h), with gradients to the table."""
    query, key = place.query, place.key
    if query is None or key is None:
        at = _whole(place, kept, count, table.shape[1])
        query, key = at.query[:, 0, :, 0], at.key[:, 0, 0]
    buckets = biases.relative_buckets(
        key[:, None, :] - query[:, :, None], num_buckets=positions.num_buckets, max_distance=positions.max_distance,
        two_sided=positions.two_sided,
    )  # fmt: skip
    return table[buckets].movedim(-1, 1)


def _whole(place: Place, kept: Kept, count: int, heads: int) -> Grid:
    """All pairs of the call."""
    device, keys = kept.keys.device, kept.keys.shape[2]
    query, key = place.query, place.key
    if query is None or key is None:
        query = torch.arange(count, device=device)[None] + place.offset
        key = torch.arange(keys, device=device)[None]
    number = torch.arange(heads, device=device).view(1, -1, 1, 1)
    batch = torch.zeros(1, 1, 1, 1, dtype=torch.int64, device=device)
    everywhere = Grid(batch, number, query, key, slice(0, count), slice(0, keys))
    return stood(everywhere, query, key)


def _columns(kept: Kept) -> Tensor | None:
    """The token number of each column, where that is not the column itself."""
    if kept.order is not None:
        return kept.order
    if kept.first:
        return kept.first + torch.arange(kept.keys.shape[2], device=kept.keys.device)
    return None


def _along(tensor: Tensor, kept: Kept, columns: Tensor | None, *, fill: float | bool) -> Tensor:
    """The last axis of a mask or a bias, which counts tokens, turned to columns; what a static cache lacks is filled."""
    length = tensor.shape[-1]
    if columns is not None:
        if length != kept.tokens:
            raise SpecError(f"a mask or bias over {length} keys does not fit the {kept.tokens} tokens so far")
        return _taken(ranked(tensor), columns, fill=fill)
    if isinstance(kept.tokens, Tensor) and length < kept.keys.shape[2]:
        if torch.compiler.is_compiling():  # where the layer has looked before, which a graph cannot
            torch._assert_async(kept.tokens <= length, "a mask or bias must have one column for each token so far")
        return pad(tensor, (0, kept.keys.shape[2] - length), value=fill)
    return tensor


def _taken(tensor: Tensor, columns: Tensor, *, fill: float | bool) -> Tensor:
    """The last axis of a tensor (b or 1, .., .., tokens) at `columns`, the same or others for each sequence; -1: `fill`."""
    if columns.dim() == 1:
        return tensor[..., columns]
    index = columns.clamp(min=0)[:, None, None].expand(-1, *tensor.shape[1:3], -1)
    found = tensor.expand(columns.shape[0], -1, -1, -1).gather(3, index)
    return torch.where((columns < 0)[:, None, None], fill, found)
