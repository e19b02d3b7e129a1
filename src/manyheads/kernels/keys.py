"""Which keys each new query of a decode step sees; apart from the kernels, so that it can be said where Numba is absent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.ops.arguments import check_window

__all__ = ["MOST_QUERIES", "Keys"]

MOST_QUERIES = 16


@dataclass(frozen=True, eq=False)
class Keys:
    """low[b, t] <= n < high[b, t] for query t of sequence b: int64 tensors (b, t)."""

    low: Tensor
    high: Tensor

    @classmethod
    def causal(cls, batch: int, queries: int, keys: int, *, window: int | None = None) -> Keys:
        """The new queries are the last of `keys` tokens; each sees itself and what came before, at most `window` keys.

        Raises SpecError for a window below 1; None is no window.
        """
        check_window(window)
        high = torch.arange(keys - queries + 1, keys + 1).expand(batch, -1)
        low = torch.zeros_like(high) if window is None else (high - window).clamp_min(0)
        return cls(low.contiguous(), high.contiguous())
