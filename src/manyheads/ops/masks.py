"""Who may see whom, as small predicates that are combined by `&`, `|`, `~` and materialised only where a form needs it.

One polarity: True = this query may attend to this key. Queries and keys are named by their absolute positions; the
queries of a call are the last ones unless an offset says otherwise (bottom-right, as decoding with a cache needs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.predicates import (
    Band,
    Causal,
    Chunk,
    Dense,
    Everything,
    Lengths,
    Opposite,
    Padding,
    PerHead,
    Placed,
    Visible,
    Window,
    grid,
)
from manyheads.quoting import shown
from manyheads.spec import masks as spec_masks

__all__ = [
    "Visible",
    "band",
    "causal",
    "chunk",
    "dense",
    "everything",
    "from_spec",
    "lengths",
    "materialise",
    "opposite",
    "padding",
    "per_head",
    "placed",
    "window",
]


def everything() -> Visible:
    """Every query sees every key."""
    return Everything()


def causal() -> Visible:
    """A query sees itself and what came before; with a cache, queries are the last positions."""
    return Causal()


def window(keys: int) -> Visible:
    """Causal, and at most `keys` keys, oneself included (Hugging Face's sliding_window); cases O55 to O57."""
    return Window(_count("window", keys, 1))


def band(radius: int) -> Visible:
    """Two-sided: keys at most `radius` positions away, 2·radius + 1 of them."""
    return Band(_count("radius", radius, 0))


def chunk(size: int) -> Visible:
    """Causal inside blocks of `size` positions, blind to earlier blocks (Llama 4)."""
    return Chunk(_count("chunk size", size, 1))


def padding(keep: Tensor) -> Visible:
    """keep (b, s), True where a key holds a token: padding removes key columns, never a query's row (case O03)."""
    _boolean("padding", keep, (2,), "(batch, keys)")
    return Padding(keep)


def lengths(valid: Tensor) -> Visible:
    """valid (b,) integers: each sequence has that many keys, the rest of the key axis is not there yet."""
    if valid.dim() != 1 or valid.is_floating_point() or valid.dtype == torch.bool:
        raise SpecError(f"lengths must be integers (batch,), found {valid.dtype} {tuple(valid.shape)}")
    return Lengths(valid)


def per_head(*masks: Visible) -> Visible:
    """One predicate a query head, in order."""
    if not masks:
        raise SpecError("per_head needs one mask a head, found none")
    return PerHead(masks)


def dense(mask: Tensor) -> Visible:
    """A boolean tensor, right-aligned against (batch, heads, queries, keys); all axes but the last may be 1. True = may attend.

    Three axes are (heads, queries, keys), and refused where there are as many sequences as heads: give four.
    """
    _boolean("visible", mask, (1, 2, 3, 4), "broadcastable to (batch, heads, queries, keys)")
    return Dense(mask)


def placed(mask: Visible, key_positions: Tensor) -> Visible:
    """`mask` where key i stands at key_positions[i] (s,) or [batch, i] (b, s) instead of at i; negative = empty slot.

    For caches whose slots are not in order. Dense masks and padding inside count by position, too.
    """
    if key_positions.dim() not in (1, 2) or key_positions.is_floating_point() or key_positions.dtype == torch.bool:
        found = f"{key_positions.dtype} {tuple(key_positions.shape)}"
        raise SpecError(f"key positions must be integers (keys,) or (batch, keys), found {found}")
    return Placed(mask, key_positions)


def opposite(mask: Visible) -> Visible:
    """What `~mask` is, for code that torch.compile traces: it does not know how to invert an object."""
    return mask.a if isinstance(mask, Opposite) else Opposite(mask)


def from_spec(mask: spec_masks.Mask) -> Visible:
    """The predicate of a spec's mask."""
    if isinstance(mask, spec_masks.Bidirectional):
        return everything()
    if isinstance(mask, spec_masks.Causal):
        return causal()
    if isinstance(mask, spec_masks.Window):
        return window(mask.keys)
    return band(mask.radius) if isinstance(mask, spec_masks.Band) else chunk(mask.size)


def materialise(
    visible: Visible,
    *,
    batch: int,
    heads: int,
    queries: int,
    keys: int,
    offset: int | Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Tensor:
    """`visible` as a boolean tensor (batch or 1, heads or 1, queries, keys); axes it does not depend on stay 1.

    `offset`: absolute position of the first query, an int or one a sequence; keys - queries where None.
    """
    visible.check(batch=batch, heads=heads, queries=queries, keys=keys)
    at = grid(
        batch=batch, heads=heads, rows=slice(0, queries), columns=slice(0, keys),
        offset=keys - queries if offset is None else offset, device=device,
    )  # fmt: skip
    seen = visible.tile(at)
    return seen.expand(seen.shape[0], seen.shape[1], queries, keys)


def _count(name: str, value: int, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise SpecError(
            f"{name} must be an integer of {least} or more, found {shown(value)}; leave it out for no {name}"
        )
    return value


def _boolean(name: str, mask: Tensor, ranks: tuple[int, ...], shape: str) -> None:
    if mask.dtype != torch.bool:
        raise SpecError(
            f"{name} must be boolean, True = may attend, found {mask.dtype}; an additive mask belongs in bias"
        )
    if mask.dim() not in ranks:
        raise SpecError(f"{name} must be {shape}, found {tuple(mask.shape)}")
