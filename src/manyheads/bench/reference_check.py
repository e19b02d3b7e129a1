"""Correctness first: the answer in float64 on the very input, and how far from it a path may be and still be timed.

error = max over heads of |y - y*| / |y*|,  y* = softmax(q k^T / sqrt(d)) v in float64, head by head
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.bench.rotation import Step

__all__ = ["BOUNDS", "error", "reference"]

BOUNDS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 3e-3, "int8": 1e-5}
"""By storage type. Of 16-bit paths the weights and the result are rounded to 16 bits (2^-9 and 2^-12); sums of tens of
thousands of products in fp32 reach a few units of 10^-6. An int8 cache is held against its own dequantised values."""

_ROWS_AT_ONCE = 64


def reference(step: Step) -> Tensor:
    """(1, h, t, v) in float64; the new tokens are the last of the cache. One KV head at a time, so that little is held."""
    heads, queries, keys = step.q.shape[1], step.q.shape[2], step.k.shape[2]
    group = heads // step.k.shape[1]
    out = torch.empty(1, heads, queries, step.v.shape[3], dtype=torch.float64)
    last = torch.arange(keys - queries, keys)
    for kv_head in range(step.k.shape[1]):
        k = _wide(step.k, step.k_scale, kv_head)
        v = _wide(step.v, step.v_scale, kv_head)
        for head in range(kv_head * group, (kv_head + 1) * group):
            for first in range(0, queries, _ROWS_AT_ONCE):
                rows = slice(first, first + _ROWS_AT_ONCE)
                logits = step.q[0, head, rows].double() @ k.T * step.q.shape[3] ** -0.5
                hidden = torch.arange(keys) > last[rows, None]
                out[0, head, rows] = logits.masked_fill_(hidden, -torch.inf).softmax(-1) @ v
    return out


def _wide(x: Tensor, scale: Tensor | None, kv_head: int) -> Tensor:
    wide = x[0, kv_head].double()
    return wide if scale is None else wide * scale[0, kv_head, :, None].double()


def error(out: Tensor, expected: Tensor) -> float:
    """The largest relative error of a head; infinity where a shape or a number is wrong."""
    if out.shape != expected.shape:
        return float("inf")
    difference = (out.double() - expected).transpose(0, 1).flatten(1).norm(dim=1)
    worst = (difference / expected.transpose(0, 1).flatten(1).norm(dim=1)).max().item()
    return worst if worst == worst and worst != float("inf") else float("inf")
