"""The same idea in numpy with the axes (batch, tokens, heads, dim): manyheads check examples/check/right_numpy.py:attention"""

import numpy as np


def attention(query, key, value, mask=None, causal=False, window=None):
    """query (b, t, h, d), key and value (b, s, k, d); mask True = may attend, broadcast to (b, h, t, s)."""
    group = query.shape[2] // key.shape[2]
    if group * key.shape[2] != query.shape[2]:
        raise ValueError(f"{query.shape[2]} query heads cannot share {key.shape[2]} key/value heads evenly")
    wide = np.promote_types(query.dtype, np.float32)
    q, k, v = (np.moveaxis(x, 2, 1).astype(wide) for x in (query, key, value))
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1]).astype(wide)

    at = np.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - np.arange(k.shape[2])  # how far back a key lies
    seen = np.ones(at.shape, dtype=bool)
    if causal or window is not None:
        seen &= at >= 0
    if window is not None:
        seen &= at < window
    seen = seen if mask is None else seen & mask

    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=np.finfo(wide).min)
    powers = np.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    weights = np.divide(powers, total, out=np.zeros_like(powers), where=total > 0)
    return np.moveaxis(weights @ v, 1, 2).astype(query.dtype)
