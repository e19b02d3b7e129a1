"""Which tensors of a model lie in the same memory: a storage is counted once, however many parameters look into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd

import numpy as np
from torch import Tensor

__all__ = ["distinct_elements", "overlapping"]


def distinct_elements(tensors: Mapping[str, Tensor]) -> int:
    """The elements that these tensors hold together, each once: of one under two names, of views, slices, transposes."""
    return sum(_held([tensors[name] for name in names]) for names in _near(tensors))


def overlapping(tensors: Mapping[str, Tensor]) -> tuple[tuple[str, ...], ...]:
    """The names of tensors that have elements in common, in groups, in the order given.

    Parts of one storage that lie side by side, or between each other's columns, have none.
    """
    found = []
    for names in _near(tensors):
        groups: list[list[str]] = []
        for name in names:
            met = [group for group in groups if any(_meet(tensors[name], tensors[other]) for other in group)]
            groups = [group for group in groups if group not in met] + [
                [name, *(one for group in met for one in group)]
            ]
        found += [group for group in groups if len(group) > 1]
    order = {name: at for at, name in enumerate(tensors)}
    return tuple(sorted(tuple(sorted(group, key=order.__getitem__)) for group in found))


def _near(tensors: Mapping[str, Tensor]) -> Iterator[list[str]]:
    """Names whose stretches of memory touch; what has no memory (the meta device) is near itself alone."""
    group: list[str] = []
    end = 0
    for first, last, name in sorted((*_stretch(tensor), name) for name, tensor in tensors.items() if tensor.numel()):
        if group and first >= end:
            yield group
            group = []
        group.append(name)
        end = last if len(group) == 1 else max(end, last)
    if group:
        yield group


def _stretch(tensor: Tensor) -> tuple[int, int]:
    """The addresses of the first byte and of the one behind the last."""
    start = tensor.data_ptr()
    if not start:
        return -id(tensor), 1 - id(tensor)
    steps = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (steps + 1) * tensor.element_size()


def _meet(one: Tensor, other: Tensor) -> bool:
    return one is other or _held([one, other]) < _held([one]) + _held([other])


def _held(tensors: Sequence[Tensor]) -> int:
    """Elements of tensors that are near each other, in elements of the first."""
    own = list({id(tensor): tensor for tensor in tensors}.values())
    first, last = zip(*map(_stretch, own), strict=True)
    size = own[0].element_size()
    if len(own) == 1 and (not own[0].data_ptr() or last[0] - first[0] == own[0].numel() * size):
        return own[0].numel()
    start, unit = min(first), gcd(*(tensor.element_size() for tensor in own), *(at - min(first) for at in first))
    taken = np.zeros((max(last) - start) // unit, dtype=bool)
    for tensor, at in zip(own, first, strict=True):
        wide = tensor.element_size() // unit
        steps = [step * wide for step in tensor.stride()]
        part = np.lib.stride_tricks.as_strided(taken[(at - start) // unit :], (*tensor.shape, wide), (*steps, 1))
        part[...] = True  # a step of 0, or rows that run into each other, write the same place twice
    return int(taken.sum()) * unit // size
