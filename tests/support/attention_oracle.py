"""Attention by the definition, in plain Python numbers, one pair at a time: what the operator's forms are held against."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["attention"]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    sees: Callable[[int, int, int, int], bool] = lambda b, h, i, j: True,
    bias: Callable[[int, int, int, int], float] = lambda b, h, i, j: 0.0,
    softcap: float | None = None,
    sinks: list[float] | None = None,
) -> tuple[Tensor, Tensor]:
    """(output, weights). `sees` and `bias` are asked by sequence, query head, row of the call and column of the call."""
    (batch, heads, rows, _), columns = q.shape, k.shape[2]
    out = torch.zeros(batch, heads, rows, v.shape[3], dtype=torch.float64)
    weights = torch.zeros(batch, heads, rows, columns, dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            shared = h // (heads // k.shape[1])
            for i in range(rows):
                terms = {}
                for j in range(columns):
                    if not sees(b, h, i, j):
                        continue
                    products = zip(q[b, h, i].tolist(), k[b, shared, j].tolist(), strict=True)
                    logit = scale * math.fsum(x * y for x, y in products)
                    if softcap is not None:
                        logit = softcap * math.tanh(logit / softcap)
                    terms[j] = math.exp(logit + bias(b, h, i, j))
                total = math.fsum(terms.values()) + (math.exp(sinks[h]) if sinks is not None else 0.0)
                for j, term in terms.items():
                    weights[b, h, i, j] = term / total
                    out[b, h, i] += term / total * v[b, shared, j].double()
    return out, weights
