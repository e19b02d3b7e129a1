"""Does a head prefer a kind of tokens, or one token that happens to be of that kind?

A head with random weights and peaked attention likes some tokens and shuns others, whatever they are. If it happens to like the
comma, it gives much to delimiters in every window, and windows as units would call that certain. So the units here are token
types, each once however often it comes (or, for the first place, places): the kind must stand out from the spread between the
others.

    t = (weighted mean of the kind - mean of the others) / (s √(Σ w² + 1/m))      m others with standard deviation s, m - 1 degrees

which is a prediction interval turned round: a kind of one type must lie as far out as a single draw may. Values are logarithms
of what a key gets, over the mean of all keys of its window, of which a type has the mean: peaked attention is normal there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from manyheads.heads.roles.text_scores import TokenFigures, TokenKinds
from manyheads.heads.significance import paired_t, student_tails

__all__ = ["LEAST_TYPES", "above_p", "delimiter_p", "first_p", "rare_p", "type_means"]

LEAST_TYPES = 8
"""A kind is held against as many other types at least."""
_OFTEN = 64
"""Delimiters are held against the types that come most often, so many of them: delimiters come often too."""

Array = np.ndarray


def type_means(values: Array, ids: Array) -> tuple[Array, Array, Array]:
    """(types (n,), counts (n, heads), means (n, heads)) of `values` (windows, heads, tokens), one for each of `ids` (windows,
    tokens); NaN is left out, and the mean of none."""
    types, which = np.unique(ids, return_inverse=True)
    flat = values.transpose(0, 2, 1).reshape(ids.size, -1)
    there = ~np.isnan(flat)
    counts, sums = np.zeros((len(types), flat.shape[1])), np.zeros((len(types), flat.shape[1]))
    np.add.at(counts, which.ravel(), there)
    np.add.at(sums, which.ravel(), np.where(there, flat, 0.0))
    return types, counts, np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def delimiter_p(figures: TokenFigures, ids: Array, words: TokenKinds) -> Array:
    """(heads,) p-values that delimiters, weighted as they come, get more than the types that come most often beside them."""
    types, counts, means = type_means(figures.lift, ids)
    of_kind, total = np.isin(types, sorted(words.delimiters)), counts.max(1)
    often = np.flatnonzero(~of_kind & (total > 1))
    others = often[np.argsort(-total[often], kind="stable")[:_OFTEN]]
    return _stands_out(means[of_kind], counts[of_kind], means[others])


def rare_p(figures: TokenFigures, ids: Array, words: TokenKinds) -> Array:
    """(heads,) p-values that tokens which the text has once get more than the other words."""
    types, counts, means = type_means(figures.lift, ids)
    of_kind = np.isin(types, sorted(words.rare))
    others = ~of_kind & ~np.isin(types, sorted(words.delimiters))
    return _stands_out(means[of_kind], counts[of_kind], means[others])


def above_p(above: Array, ids: Array) -> Array:
    """(heads,) p-values that types look somewhere by more than others do, and by more than an even spread would: of `above`
    (windows, heads, tokens, 2), a `TokenFigures`' alike or itself."""
    sides = [type_means(above[..., side], ids)[2] for side in (0, 1)]
    return np.maximum(*(paired_t(side) for side in sides))


def first_p(first: Array, lift: Array, tokens: Sequence[int]) -> Array:
    """(heads,) p-values that the first place gets more than a place may, with the token that happens to stand there. `first`
    (windows, heads) and `lift` (windows, heads, tokens) are those of `TokenFigures`; `tokens`: the first one of each window. The
    more of them differ, the less of the spread between tokens is left in their mean.
    """
    units = np.maximum((~np.isnan(lift)).sum(0), 1)
    there = ~np.isnan(lift).all(0)
    places = np.where(there, np.nansum(lift, 0) / units, np.nan)
    within = np.where(there, np.nansum((lift - places) ** 2, 0), 0.0).sum(-1) / np.maximum((units - 1).sum(-1), 1)
    extra = within * max(0.0, 1 / len(set(tokens)) - 1 / len(lift))
    return _t(first.mean(0), 1.0, places.T, extra=extra)


def _stands_out(kind: Array, weights: Array, others: Array) -> Array:
    if not kind.size or not others.size:
        return np.full(kind.shape[1], np.nan)
    share = weights / np.maximum(weights.sum(0), 1)
    return _t(np.nansum(share * np.nan_to_num(kind), 0), (share**2).sum(0), others)


def _t(value: Array, squares: Array | float, others: Array, *, extra: Array | float = 0.0) -> Array:
    """One-sided p-values of `value` (heads,), a mean with the sum of squared weights `squares`, among `others` (m, heads); `extra`
    variance of the value alone."""
    there = ~np.isnan(others)
    count = there.sum(0)
    mean = np.where(there, others, 0.0).sum(0) / np.maximum(count, 1)
    variance = np.where(there, (others - mean) ** 2, 0.0).sum(0) / np.maximum(count - 1, 1)
    error = np.sqrt(variance * (squares + 1 / np.maximum(count, 1)) + extra)
    enough = (count >= LEAST_TYPES) & (np.asarray(squares) > 0) & ~np.isnan(value)
    return student_tails(np.where(enough, value - mean, np.nan), error, count - 1)
