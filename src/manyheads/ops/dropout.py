"""Dropout whose choice is a function of a seed and a place, so that a tiled form can make it again in its backward."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.ops.predicates import Grid

__all__ = ["factor", "seed"]

_WORD = 0xFFFFFFFF


def seed(device: torch.device) -> Tensor:
    """Two random words from torch's own generator: `torch.manual_seed` makes dropout repeatable."""
    return torch.randint(0, 2**31, (2,), device=device)


def factor(seed: Tensor, at: Grid, *, share: float, dtype: torch.dtype) -> Tensor:
    """0 for the `share` of pairs that is dropped, 1/(1 - share) for the others; (b, h, rows, columns).

    The same for a pair whatever the tile it is asked in: a hash of the seed, sequence, head, row and column.
    """
    device = at.key.device
    row = torch.arange(at.rows.start, at.rows.stop, device=device).view(1, 1, -1, 1)
    column = torch.arange(at.columns.start, at.columns.stop, device=device).view(1, 1, 1, -1)
    words = _mix(_mix(_mix(_mix(at.batch ^ seed[0]) ^ at.head) ^ row) ^ _mix(column ^ seed[1]))
    kept = words >= round(share * 2**32)
    return kept.to(dtype) / (1.0 - share)


def _mix(word: Tensor) -> Tensor:
    """A hash of 32 bits to 32 bits by two multiplications (constants below 2^31: products stay inside int64)."""
    word = word & _WORD
    word = ((word ^ (word >> 16)) * 0x21F0AAAD) & _WORD
    word = ((word ^ (word >> 15)) * 0x735A2D97) & _WORD
    return word ^ (word >> 15)
