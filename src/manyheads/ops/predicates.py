"""The predicates behind `ops.masks`: small frozen classes that answer for index tensors, for a tile, for a whole block.

Queries and keys are named by their absolute positions. `block` lets a tiled form skip what nobody sees; it is
three-valued, so that `&`, `|` and `~` combine it as Kleene's logic does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.arguments import check_axes, check_shape

__all__ = [
    "Band",
    "Both",
    "Causal",
    "Chunk",
    "Dense",
    "Either",
    "Everything",
    "Grid",
    "Lengths",
    "Opposite",
    "Padding",
    "PerHead",
    "Placed",
    "Visible",
    "Window",
    "fits",
    "grid",
]


@dataclass(frozen=True, eq=False)
class Grid:
    """The pairs of one block: index tensors that broadcast to (batch, heads, rows, columns), and where they lie.

    `batch` (b,1,1,1), `head` (1,h,1,1), `query` (b or 1,1,rows,1) and `key` (1,1,1,columns) are integer tensors;
    query and key hold absolute positions. `rows` and `columns` count from the first query and key of the call.
    """

    batch: Tensor
    head: Tensor
    query: Tensor
    key: Tensor
    rows: slice
    columns: slice


def grid(
    *, batch: int, heads: int, rows: slice, columns: slice, offset: int | Tensor, device: torch.device | str
) -> Grid:
    """The pairs of `rows` x `columns`, where query i stands at absolute position offset + i (an int, or one a sequence)."""

    def index(start: int, stop: int) -> Tensor:
        return torch.arange(start, stop, device=device)

    query = index(rows.start, rows.stop).view(1, 1, -1, 1)
    query = query + (offset.to(device).view(-1, 1, 1, 1) if isinstance(offset, Tensor) else offset)
    return Grid(
        index(0, batch).view(-1, 1, 1, 1), index(0, heads).view(1, -1, 1, 1), query,
        index(columns.start, columns.stop).view(1, 1, 1, -1), rows, columns,
    )  # fmt: skip


class Visible:
    """A predicate on (batch, head, query, key); combine with `&`, `|` and `~`."""

    structural = True  # whether it is a formula in positions alone, without a tensor of its own

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Whether each query may attend to each key; index tensors broadcast, query and key are absolute positions."""
        raise NotImplementedError

    def tile(self, at: Grid) -> Tensor:
        """The same for a block of pairs, broadcastable to (batch, heads, rows, columns)."""
        return self(at.batch, at.head, at.query, at.key)

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:  # noqa: ARG002
        """True if every pair of the block is visible, False if none is, None if one has to look."""
        return None

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        """Raise a SpecError if a tensor inside does not fit the call."""

    def __and__(self, other: Visible) -> Visible:
        if isinstance(other, Everything):
            return self
        return other if isinstance(self, Everything) else Both(self, other)

    def __or__(self, other: Visible) -> Visible:
        return Everything() if isinstance(self, Everything) or isinstance(other, Everything) else Either(self, other)

    def __invert__(self) -> Visible:
        return Opposite(self)


@dataclass(frozen=True)
class Everything(Visible):
    """Every query sees every key."""

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG002
        return torch.ones_like(key, dtype=torch.bool)

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:  # noqa: ARG002
        return True


@dataclass(frozen=True)
class Causal(Visible):
    """key <= query: oneself and what came before."""

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG002
        return key <= query

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        if last_key <= first_query:
            return True
        return False if first_key > last_query else None


@dataclass(frozen=True)
class Window(Visible):
    """query - keys < key <= query: causal, and `keys` keys at most, oneself included."""

    keys: int

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG002
        return (key <= query) & (key > query - self.keys)

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        if last_key <= first_query and first_key > last_query - self.keys:
            return True
        return False if first_key > last_query or last_key <= first_query - self.keys else None


@dataclass(frozen=True)
class Band(Visible):
    """|query - key| <= radius."""

    radius: int

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG002
        return (query - key).abs() <= self.radius

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        if last_key - first_query <= self.radius and last_query - first_key <= self.radius:
            return True
        return False if first_key - last_query > self.radius or first_query - last_key > self.radius else None


@dataclass(frozen=True)
class Chunk(Visible):
    """Causal inside blocks of `size` positions, blind to earlier blocks."""

    size: int

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG002
        same = query.div(self.size, rounding_mode="floor") == key.div(self.size, rounding_mode="floor")
        return (key <= query) & same

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        if last_key <= first_query and first_key // self.size == last_query // self.size:
            return True
        blind = last_key // self.size < first_query // self.size
        return False if first_key > last_query or blind else None


@dataclass(frozen=True, eq=False)
class Padding(Visible):
    """keep[batch, key]: keys that hold a token."""

    keep: Tensor
    structural = False

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG002
        return self.keep[batch if self.keep.shape[0] != 1 else batch[:1] * 0, key]

    def tile(self, at: Grid) -> Tensor:
        return self.keep[:, None, None, at.columns]

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:  # noqa: ARG002
        check_shape("padding", self.keep, batch=batch, keys=keys)


@dataclass(frozen=True, eq=False)
class Lengths(Visible):
    """key < valid[batch]: the first `valid` keys of each sequence."""

    valid: Tensor
    structural = False

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:  # noqa: ARG002
        return key < self.valid[batch]

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:  # noqa: ARG002
        fits("lengths", self.valid, (batch,))


@dataclass(frozen=True, eq=False)
class Dense(Visible):
    """A boolean tensor (.., t, s), right-aligned against (batch, heads, queries, keys): rows count from the first query.
    Axes but the keys' may be 1; three axes are refused where there are as many sequences as heads.

    Called with absolute positions, query `first` reads row 0.
    """

    mask: Tensor
    first: int = 0
    structural = False

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        mask, index = self._ranked(), (batch, head, query - self.first, key)
        zero = batch.new_zeros(1, 1, 1, 1)
        return mask[tuple(zero if size == 1 else at for size, at in zip(mask.shape, index, strict=True))]

    def tile(self, at: Grid) -> Tensor:
        mask = self._ranked()
        return mask[:, :, at.rows if mask.shape[2] != 1 else slice(None), at.columns]

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        check_axes("visible", self.mask, batch=batch, heads=heads)
        check_shape("visible", self._ranked(), batch=batch, heads=heads, queries=queries, keys=keys)

    def _ranked(self) -> Tensor:
        return self.mask[(None,) * (4 - self.mask.dim())]


@dataclass(frozen=True, eq=False)
class PerHead(Visible):
    """Head h sees by masks[h]."""

    masks: tuple[Visible, ...]
    structural = False

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self._join([mask(batch, head, query, key) for mask in self._kinds()], head)

    def tile(self, at: Grid) -> Tensor:
        return self._join([mask.tile(at) for mask in self._kinds()], at.head)

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        found = {mask.block(first_query, last_query, first_key, last_key) for mask in self._kinds()}
        return found.pop() if len(found) == 1 else None

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        if len(self.masks) != heads:
            raise SpecError(f"per_head holds {len(self.masks)} masks, one a head is needed; found {heads} heads")
        for mask in self._kinds():
            mask.check(batch=batch, heads=heads, queries=queries, keys=keys)

    def _kinds(self) -> list[Visible]:
        return list(dict.fromkeys(self.masks))

    def _join(self, seen: list[Tensor], head: Tensor) -> Tensor:
        joined = seen[0]
        for kind, one in list(zip(self._kinds(), seen, strict=True))[1:]:
            mine = torch.zeros_like(head, dtype=torch.bool)
            for number, mask in enumerate(self.masks):
                mine = mine | (head == number) if mask == kind else mine
            joined = torch.where(mine, one, joined)
        return joined


@dataclass(frozen=True, eq=False)
class Placed(Visible):
    """Key i of the call stands at positions[batch, i] (a ring cache's order); a negative position is an empty slot."""

    mask: Visible
    positions: Tensor
    structural = False

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        at = self.positions[key] if self.positions.dim() == 1 else self.positions[batch, key]
        return self.mask(batch, head, query, at) & (at >= 0)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        fits("key positions", self.positions, (batch, keys)[-self.positions.dim() :])
        self.mask.check(batch=batch, heads=heads, queries=queries, keys=keys)


@dataclass(frozen=True)
class Both(Visible):
    """a and b."""

    a: Visible
    b: Visible

    @property
    def structural(self) -> bool:  # type: ignore[override]
        return self.a.structural and self.b.structural

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.a(batch, head, query, key) & self.b(batch, head, query, key)

    def tile(self, at: Grid) -> Tensor:
        return self.a.tile(at) & self.b.tile(at)

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        a = self.a.block(first_query, last_query, first_key, last_key)
        b = False if a is False else self.b.block(first_query, last_query, first_key, last_key)
        return False if b is False else (True if a and b else None)

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.a.check(batch=batch, heads=heads, queries=queries, keys=keys)
        self.b.check(batch=batch, heads=heads, queries=queries, keys=keys)


@dataclass(frozen=True)
class Either(Both):
    """a or b."""

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.a(batch, head, query, key) | self.b(batch, head, query, key)

    def tile(self, at: Grid) -> Tensor:
        return self.a.tile(at) | self.b.tile(at)

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        a = self.a.block(first_query, last_query, first_key, last_key)
        b = True if a else self.b.block(first_query, last_query, first_key, last_key)
        return True if b else (False if a is False and b is False else None)


@dataclass(frozen=True)
class Opposite(Visible):
    """not a."""

    a: Visible

    @property
    def structural(self) -> bool:  # type: ignore[override]
        return self.a.structural

    def __call__(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ~self.a(batch, head, query, key)

    def tile(self, at: Grid) -> Tensor:
        return ~self.a.tile(at)

    def block(self, first_query: int, last_query: int, first_key: int, last_key: int) -> bool | None:
        a = self.a.block(first_query, last_query, first_key, last_key)
        return None if a is None else not a

    def check(self, *, batch: int, heads: int, queries: int, keys: int) -> None:
        self.a.check(batch=batch, heads=heads, queries=queries, keys=keys)

    def __invert__(self) -> Visible:
        return self.a


def fits(name: str, tensor: Tensor, wanted: tuple[int, ...]) -> None:
    """Raise a SpecError unless `tensor` has exactly this shape."""
    if tuple(tensor.shape) != wanted:
        raise SpecError(f"{name} has shape {tuple(tensor.shape)}, which does not fit {wanted}")
