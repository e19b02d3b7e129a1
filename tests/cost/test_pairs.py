"""Visible pairs: each closed form against counting, key by key, what the mask allows; then facts' own numbers."""

from __future__ import annotations

import pytest

from manyheads.cost.pairs import banded, causal, chunked, dense_pairs, keys_held, visible_pairs, windowed
from manyheads.spec.masks import Band, Bidirectional, Causal, Chunk, Window

MASKS = [
    Bidirectional(),
    Causal(),
    *(Window(n) for n in (1, 2, 3, 5, 8, 30)),
    *(Band(n) for n in (0, 1, 2, 3, 7, 30)),
    *(Chunk(n) for n in (1, 2, 3, 5, 8, 30)),
]


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_closed_form_equals_counting(mask):
    for keys in range(15):
        for queries in range(keys + 1):
            counted = sum(mask.visible(query, key) for query in range(keys - queries, keys) for key in range(keys))
            assert visible_pairs(mask, queries, keys) == counted, (queries, keys)


@pytest.mark.parametrize("mask", [m for m in MASKS if isinstance(m, Causal | Window | Chunk)], ids=str)
def test_a_cache_holds_every_key_that_a_later_query_may_see(mask):
    """keys_held is enough for the newest query, and at some length all of it is needed."""
    needed = [sum(mask.visible(tokens - 1, key) for key in range(tokens)) for tokens in range(1, 40)]
    held = [keys_held(mask, tokens) for tokens in range(1, 40)]
    assert all(a <= b for a, b in zip(needed, held, strict=True))
    assert max(needed) == max(held)


def test_two_sided_layers_keep_nothing():
    assert keys_held(Bidirectional(), 100) == 0
    assert keys_held(Band(3), 100) == 0


def test_window_from_scratch():
    """facts 4.1: T·W - W(W-1)/2 for T >= W, written another way."""
    tokens, window = 8192, 4096
    assert windowed(tokens, tokens, window) == tokens * window - window * (window - 1) // 2


def test_window_of_the_whole_context_is_causal():
    for queries, keys in ((1, 9), (4, 9), (9, 9)):
        for window in (9, 10, 1000):
            assert windowed(queries, keys, window) == causal(queries, keys)


def test_two_sided_radius():
    """facts 4.1: T(2R+1) - R(R+1) for T >= R+1."""
    for tokens, radius in ((4, 3), (100, 7), (512, 128)):
        assert banded(tokens, tokens, radius) == tokens * (2 * radius + 1) - radius * (radius + 1)


def test_row_sums_of_a_window_of_three():
    """O55: visible keys a row are 1, 2, 3, 3, 3, 3, self included."""
    rows = [windowed(n, n, 3) - windowed(n - 1, n - 1, 3) for n in range(1, 7)]
    assert rows == [1, 2, 3, 3, 3, 3]


def test_three_worlds():
    numpy, sympy = pytest.importorskip("numpy"), pytest.importorskip("sympy")
    q, k, n = sympy.symbols("q k n", integer=True, positive=True)
    sizes = [(3, 8, 4), (8, 8, 4), (1, 9, 12), (5, 5, 1), (7, 30, 6)]
    columns = [numpy.array(column, dtype=object) for column in zip(*sizes, strict=True)]
    floats = [column.astype(float) for column in columns]
    for formula in (windowed, banded, chunked):
        exact = [formula(*size) for size in sizes]
        assert formula(*columns).tolist() == exact
        assert formula(*floats).tolist() == exact
        symbolic = formula(q, k, n)
        assert [symbolic.subs(dict(zip((q, k, n), size, strict=True))) for size in sizes] == exact
    for formula in (causal, dense_pairs):
        exact = [formula(a, b) for a, b, _ in sizes]
        assert formula(*columns[:2]).tolist() == exact
        assert [formula(q, k).subs({q: a, k: b}) for a, b, _ in sizes] == exact
