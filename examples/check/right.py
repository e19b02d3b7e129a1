"""An attention function that passes every check: manyheads check examples/check/right.py:attention

What it takes is what the checks know of: grouped heads, a mask (True = may attend), a bias, a causal flag, a window,
a scale, a softcap, sinks, padding; and it returns the weights when asked.
"""

import torch


def attention(
    q, k, v, *, visible=None, key_padding_mask=None, bias=None, causal=False, window=None, scale=None, softcap=None,
    sinks=None, return_weights=False,
):  # fmt: skip
    """softmax(q k^T · scale) v for q (b, h, t, d), k (b, k, s, d), v (b, k, s, e); key_padding_mask (b, s), True = keep."""
    heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
    if heads % k.shape[1]:
        raise ValueError(f"{heads} query heads cannot share {k.shape[1]} key/value heads evenly")
    group = heads // k.shape[1]
    k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)

    # scores and softmax in float32 at least: 16 bits are for storage
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = q.to(wide) @ k.to(wide).mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(wide)

    # the queries are the last tokens: with a cache there are more keys
    query = torch.arange(keys - queries, keys, device=q.device)[:, None]
    key = torch.arange(keys, device=q.device)
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device)
    if causal or window is not None:
        seen = seen & (key <= query)
    if window is not None:
        seen = seen & (key > query - window)  # window keys, the query's own among them
    if visible is not None:
        seen = seen & visible
    if key_padding_mask is not None:
        seen = seen & key_padding_mask[:, None, None, :]

    scores = scores.masked_fill(~seen, -torch.inf)
    weights = softmax(scores, sinks)
    out = (weights @ v.to(wide)).to(q.dtype)
    return (out, weights.to(q.dtype)) if return_weights else out


def softmax(scores, sinks):
    """Over the keys; a row of -inf gives zeros. sinks (h,): one more logit a head, in the denominator only."""
    if scores.shape[-1] == 0:
        return scores
    top = scores.detach().amax(-1, keepdim=True)
    if sinks is not None:
        sinks = sinks.to(scores.dtype).view(1, -1, 1, 1)
        top = torch.maximum(top, sinks)
    top = top.clamp(min=torch.finfo(scores.dtype).min)  # -inf - -inf is NaN
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - top)
    return powers / total.masked_fill(total == 0, 1)
