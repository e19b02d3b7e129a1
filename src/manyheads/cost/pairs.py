"""P, the visible (query, key) pairs of a mask: T_q new queries at the end of T_k keys [facts: F1, F2, F3, F5].

Each formula was proved by counting what `Mask.visible` allows. `dense_pairs` is what a kernel that skips nothing
computes, and what the literature on model-FLOPs utilisation counts.
"""

from __future__ import annotations

from manyheads.cost.algebra import Number, least, most
from manyheads.spec.masks import Band, Bidirectional, Causal, Chunk, Mask, Window

__all__ = ["banded", "causal", "chunked", "dense_pairs", "keys_held", "visible_pairs", "windowed"]


def dense_pairs(queries: Number, keys: Number) -> Number:
    """T_q · T_k: the whole rectangle."""
    return queries * keys


def causal(queries: Number, keys: Number) -> Number:
    """T_q·o + T_q(T_q+1)/2 with o = T_k - T_q: aligned at the end, as decoding with a cache needs."""
    past = keys - queries
    return queries * past + queries * (queries + 1) // 2


def windowed(queries: Number, keys: Number, window: Number) -> Number:
    """r·o + r(r+1)/2 + (T_q-r)·W with r = clamp(W-o, 0, T_q): causal, at most W keys, self included."""
    past = keys - queries
    growing = most(least(window - past, queries), 0)
    return growing * past + growing * (growing + 1) // 2 + (queries - growing) * window


def banded(queries: Number, keys: Number, radius: Number) -> Number:
    """Two-sided, radius R: a causal window of R+1 keys, and to the right R keys or as many as are left."""
    short = least(radius + 1, queries)
    return windowed(queries, keys, radius + 1) + short * (short - 1) // 2 + (queries - short) * radius


def chunked(queries: Number, keys: Number, size: Number) -> Number:
    """Causal inside blocks of C: F(T_k) - F(T_k - T_q), F(n) = (n//C)·C(C+1)/2 + m(m+1)/2, m = n - C·(n//C)."""
    return _chunk_sum(keys, size) - _chunk_sum(keys - queries, size)


def _chunk_sum(tokens: Number, size: Number) -> Number:
    full = tokens // size
    rest = tokens - full * size
    return full * (size * (size + 1) // 2) + rest * (rest + 1) // 2


def visible_pairs(mask: Mask, queries: Number, keys: Number) -> Number:
    """Exact pairs of `mask` for `queries` new tokens, the last of `keys` tokens."""
    if isinstance(mask, Bidirectional):
        return dense_pairs(queries, keys)
    if isinstance(mask, Causal):
        return causal(queries, keys)
    if isinstance(mask, Window):
        return windowed(queries, keys, mask.keys)
    if isinstance(mask, Band):
        return banded(queries, keys, mask.radius)
    assert isinstance(mask, Chunk)
    return chunked(queries, keys, mask.size)


def keys_held(mask: Mask, tokens: Number) -> Number:
    """Tokens whose keys and values a cache must hold after `tokens` tokens: min(S, W) under a window [facts: F49].

    A chunk is held until it is full. Two-sided masks read all tokens at once and keep nothing.
    """
    if isinstance(mask, Causal):
        return tokens
    if isinstance(mask, Window):
        return least(tokens, mask.keys)
    if isinstance(mask, Chunk):
        return least(tokens, mask.size)
    return tokens * 0
