"""Stored tensors taken apart into canonical ones and put together again, by the patterns of a family's layout.

Nothing is computed: elements change places only, so both ways are exact to the bit, whatever the type.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import torch
from einops import rearrange
from torch import Tensor

from manyheads.checkpoints.layout import Expected, groups
from manyheads.errors import CheckpointError

__all__ = ["from_rows", "put_together", "rows_of", "take_apart"]

_AS_IT_IS = "..."


def take_apart(item: Expected, tensor: Tensor) -> dict[str, Tensor]:
    """The canonical tensors inside the stored one that `item` describes, by name; they may share its memory.

    Where every expert has a tensor of its own, these are the parts of that one expert.
    """
    if item.stored.parts[0][1] == _AS_IT_IS:
        return {item.parts[0].name: tensor}
    lengths = [_arranged(item, part)[item.stored.axis] for part in range(len(item.parts))]
    joined = _arranged(item, 0)
    joined[item.stored.axis] = sum(lengths)
    pieces = tensor.reshape(joined).split(lengths, dim=item.stored.axis)
    return {item.parts[part].name: _back(item, part, piece) for part, piece in enumerate(pieces)}


def put_together(item: Expected, canonical: Mapping[str, Tensor]) -> Tensor:
    """The stored tensor that `item` describes, made of canonical ones; where it is one expert's, of that expert's."""
    pieces = []
    for part, weight in enumerate(item.parts):
        whole = canonical[weight.name]
        if tuple(whole.shape) != weight.shape:
            raise CheckpointError(f"{weight.name} must be ({weight.axes}) {weight.shape}, found {tuple(whole.shape)}")
        own = whole if item.index < 0 else whole[item.index]
        if item.stored.parts[part][1] == _AS_IT_IS:
            pieces.append(own)
            continue
        if item.rotated:
            own = _reordered(item, part, own, _to_pairs(item.rotated))
        left, right = _sides(item, part)
        pieces.append(rearrange(own, f"{left} -> {right}", **_sizes(item, left)))
    if len({piece.dtype for piece in pieces}) > 1:
        types = ", ".join(f"{w.name} {p.dtype}" for w, p in zip(item.parts, pieces, strict=True))
        raise CheckpointError(f"{item.name} is stored as one tensor of parts that must share a type, found {types}")
    return (pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=item.stored.axis)).reshape(item.shape)


def rows_of(item: Expected, name: str) -> tuple[int, int] | None:
    """The rows of the stored tensor in which the canonical weight `name` lies alone, None where it is not in rows."""
    if len(item.parts) == 1 or item.stored.axis != 0 or item.stored.merge >= 0:
        return None
    start = 0
    for part, weight in enumerate(item.parts):
        length = _arranged(item, part)[0]
        if weight.name == name:
            return start, start + length
        start += length
    raise KeyError(name)


def from_rows(item: Expected, name: str, rows: Tensor) -> Tensor:
    """The canonical weight `name` from the rows that `rows_of` said."""
    part = [weight.name for weight in item.parts].index(name)
    return _back(item, part, rows)


def _back(item: Expected, part: int, piece: Tensor) -> Tensor:
    left, right = _sides(item, part)
    made = rearrange(piece, f"{right} -> {left}", **_sizes(item, right))
    return _reordered(item, part, made, _from_pairs(item.rotated)) if item.rotated else made


def _from_pairs(rotated: int) -> list[int]:
    """Where each element of two halves lies among pairs."""
    return [*range(0, rotated, 2), *range(1, rotated, 2)]


def _to_pairs(rotated: int) -> list[int]:
    """Where each element of pairs lies among two halves."""
    return [place for pair in zip(range(rotated // 2), range(rotated // 2, rotated), strict=True) for place in pair]


def _reordered(item: Expected, part: int, weight: Tensor, order: list[int]) -> Tensor:
    """`weight` with the first elements of each head in another order."""
    axis = [axis for axis in item.parts[part].axes.split() if axis != item.stored.each].index("q")
    rest = range(len(order), weight.shape[axis])
    return weight.index_select(axis, torch.tensor([*order, *rest], device=weight.device))


def _sides(item: Expected, part: int) -> tuple[str, str]:
    """The pattern of a part in full: the weight's own axes, and the arranged ones."""
    axes = [axis for axis in item.parts[part].axes.split() if axis != item.stored.each]
    left, arrow, right = item.stored.parts[part][1].partition("->")
    return (left.strip(), right.strip()) if arrow else (" ".join(axes), left.strip())


def _sizes(item: Expected, side: str) -> dict[str, int]:
    return {axis: item.sizes[axis] for group in groups(side) for axis in group if axis != "1"}


def _arranged(item: Expected, part: int) -> list[int]:
    """The shape of a part after its pattern, before the parts are joined."""
    _, right = _sides(item, part)
    return [prod(1 if axis == "1" else item.sizes[axis] for axis in group) for group in groups(right)]
