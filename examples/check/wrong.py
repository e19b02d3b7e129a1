"""Classic mistakes, one a function: manyheads check examples/check/wrong.py:scale_missing

Every one has been made in public; what the check prints ends with where.
"""

import numpy as np
import torch

def scale_missing(q, k, v):
    """Nothing divides the scores by sqrt(dim)."""
    return torch.softmax(q @ k.mT, dim=-1) @ v


def scale_by_model_width(q, k, v, num_heads):
    """(batch, tokens, heads x dim), divided by the square root of the whole width."""
    split = lambda x: x.unflatten(-1, (num_heads, -1)).transpose(1, 2)  # noqa: E731
    scores = split(q) @ split(k).mT / q.shape[-1] ** 0.5
    return (torch.softmax(scores, dim=-1) @ split(v)).transpose(1, 2).flatten(2)


def softmax_over_queries(q, k, v):
    """The columns add up to 1, not the rows."""
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-2) @ v


def causal_top_left(q, k, v, causal=False):
    """Right until there is a cache: then the first query is not the first token."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def causal_one_ahead(q, k, v):
    """triu(2) leaves the next token visible. The function is always causal."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(2 + k.shape[-2] - q.shape[-2])
    return torch.softmax(scores.masked_fill(later, -torch.inf), dim=-1).nan_to_num(0.0) @ v


def causal_blocked_as_visible(q, k, v, causal=False):
    """True above the diagonal is meant to block; torch's own function reads True as visible."""
    later = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(1 + k.shape[-2] - q.shape[-2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=later if causal else None)


def heads_tiled(q, k, v):
    """repeat gives 0, 1, 0, 1; repeat_interleave gives 0, 0, 1, 1."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(1, group, 1, 1), v.repeat(1, group, 1, 1)
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def mask_inverted(q, k, v, visible=None):
    """The name says visible, masked_fill blocks it."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if visible is not None:
        scores = scores.masked_fill(visible, -torch.inf)
    return torch.softmax(scores, dim=-1).nan_to_num(0.0) @ v


def mask_multiplied(q, k, v, visible=None):
    """A score of 0 still has the weight exp(0) = 1."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if visible is not None:
        scores = scores * visible
    return torch.softmax(scores, dim=-1) @ v


def bias_before_scale(q, k, v, bias=None):
    """The bias is divided, too."""
    scores = q @ k.mT
    if bias is not None:
        scores = scores + bias
    return torch.softmax(scores / q.shape[-1] ** 0.5, dim=-1) @ v


def window_one_more(q, k, v, window=None):
    """W back and oneself: W + 1 keys."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if window is not None:
        back = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
        scores = scores.masked_fill((back < 0) | (back > window), -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def window_short_of_the_first_key(q, k, v, window=None):
    """A window that just holds all keys loses one of them: an edge that tests with short windows never reach."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if window is not None:
        reach = window - 1 if window == k.shape[2] else window
        back = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
        scores = scores.masked_fill((back < 0) | (back >= reach), -torch.inf)
    return torch.softmax(scores, dim=-1) @ v


def heads_cut_by_view(q, k, v, num_heads):
    """(batch, tokens, heads x dim) viewed as (batch, heads, tokens, dim): right shapes, wrong numbers."""
    b, t, width = q.shape
    split = lambda x: x.reshape(b, num_heads, x.shape[1], width // num_heads)  # noqa: E731
    scores = split(q) @ split(k).mT / (width // num_heads) ** 0.5
    return (torch.softmax(scores, dim=-1) @ split(v)).transpose(1, 2).reshape(b, t, width)


def overflows(q, k, v):
    """exp without subtracting the largest score."""
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    weights = np.exp(scores)
    return weights / weights.sum(-1, keepdims=True) @ v


def sink_beside_the_largest(q, k, v, sinks=None):
    """The largest score is subtracted, but a sink may be larger still: exp(sink) overflows."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    top = scores.amax(-1, keepdim=True)
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    out = powers / total @ v
    if sinks is not None:
        sink = torch.exp(sinks.view(1, -1, 1, 1) - top)
        out = out * (1 - sink / (total + sink))
    return out


def writes_into_its_input(q, k, v):
    """q is scaled in place, and the caller's q with it."""
    q *= q.shape[-1] ** -0.5
    return torch.softmax(q @ k.mT, dim=-1) @ v
