"""Right by the book, and weak where models meet it: manyheads check examples/check/weak.py:nan_on_empty_rows

The command ends with 0, for none of them is wrong; with --require empty-rows (or float16, bfloat16) it ends with 1.
"""

import torch


def nan_on_empty_rows(q, k, v, mask=None):
    """softmax of nothing but -inf."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def mean_on_empty_rows(q, k, v, mask=None):
    """-1e9 for blocked scores: where all are blocked, all are equal."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -1e9)
    return torch.softmax(scores, dim=-1) @ v


def softmax_in_16_bits(q, k, v):
    """Scores in the format of the input: fine in float32, off by per cents in bfloat16."""
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return torch.softmax(scores, dim=-1) @ v
