"""The Hadamard rotation of keys before they are rounded to int8, and of the queries that meet them: (Hq) · (Hk) = q · k.

A few elements of a model's keys are many times larger than the others, in the same places for every token, and one scale a
token makes the step of all as coarse as these need. H spreads each over all: the Hadamard matrix / sqrt(n), symmetric and
its own inverse, on the largest runs of n = 2^i elements that the head is made of. (Ashkboos et al. 2024, QuaRot,
arXiv:2404.00456, rotate keys and queries so.)
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["hadamard_rotate"]


def hadamard_rotate(x: Tensor) -> Tensor:
    """H x (.., d) for heads x (.., d), in float32 or wider; applied twice it is x again."""
    size = x.shape[-1]
    run = size & -size  # the largest power of two that divides it
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if run < 2:
        return wide
    return (wide.unflatten(-1, (size // run, run)) @ _hadamard(run, wide)).flatten(-2)


_made: dict[int, Tensor] = {}


def _hadamard(size: int, like: Tensor) -> Tensor:
    """Sylvester's matrix: -1 to the number of bits that row and column have in common, over the root of the size."""
    if torch.compiler.is_compiling() and size not in _made:
        return _sylvester(size).to(like)
    if size not in _made:
        with torch.inference_mode(mode=False):  # it is kept, and serves gradients too
            _made[size] = _sylvester(size)
    return _made[size].to(like)


def _sylvester(size: int) -> Tensor:
    common = torch.arange(size)[:, None] & torch.arange(size)
    odd: Tensor = sum((common >> bit) & 1 for bit in range(size.bit_length())) % 2  # type: ignore[assignment]
    return (1.0 - 2.0 * odd.to(torch.float64)) * size**-0.5
