"""The orders of axes that attention functions take, to and from (batch, heads, tokens, dim)."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["has_batch", "has_heads", "pack", "packed_shape", "reduce_mask", "unpack"]


def has_batch(layout: str) -> bool:
    """Whether a call holds several sequences."""
    return "b" in layout


def has_heads(layout: str, *, packed: bool) -> bool:
    """Whether a call holds several heads."""
    return "h" in layout or packed


def pack(x: Tensor, layout: str) -> Tensor:
    """(b, h, t, d) in the order of `layout`: contiguous, and in memory of its own, so that nobody can spoil `x`."""
    if layout == "tbd":
        return x.permute(2, 0, 1, 3).flatten(2).clone(memory_format=torch.contiguous_format)
    if layout == "btd":
        return x.transpose(1, 2).flatten(2).clone(memory_format=torch.contiguous_format)
    if "b" not in layout:
        x = x[0]
    if layout in ("bthd", "thd"):
        x = x.transpose(-3, -2)
    if layout == "td":
        x = x[0]
    return x.clone(memory_format=torch.contiguous_format)


def packed_shape(shape: tuple[int, int, int, int], layout: str) -> tuple[int, ...]:
    """The shape that `pack` gives."""
    b, h, t, d = shape
    if layout == "btd":
        return (b, t, h * d)
    if layout == "tbd":
        return (t, b, h * d)
    sizes = {"b": b, "h": h, "t": t, "d": d}
    return tuple(sizes[letter] for letter in layout)


def unpack(x: Tensor, layout: str, heads: int) -> Tensor:
    """The inverse of `pack`, back to (b, h, t, d)."""
    if layout == "tbd":
        x = x.transpose(0, 1)
    if layout in ("btd", "tbd"):
        return x.unflatten(2, (heads, x.shape[2] // heads)).transpose(1, 2)
    if layout == "td":
        x = x[None]
    if layout in ("bthd", "thd"):
        x = x.transpose(-3, -2)
    return x if "b" in layout else x[None]


def reduce_mask(mask: Tensor, axes: str, batch: int, heads: int) -> Tensor:
    """A mask (batch or 1, heads or 1, t, s) with the axes that the function takes; the batch axis is full."""
    if axes == "ts":
        return mask[0, 0].clone()
    if axes == "nts":
        return mask.expand(batch, heads, *mask.shape[2:]).flatten(0, 1).clone()
    mask = mask.expand(batch, *mask.shape[1:])
    if axes == "tsb":
        return mask[:, 0].permute(1, 2, 0).clone(memory_format=torch.contiguous_format)
    return (mask[:, 0] if axes == "bts" else mask).clone(memory_format=torch.contiguous_format)
