"""Who sees whom, counted key by key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.spec import Band, Bidirectional, Causal, Chunk, Window
from support.strategies import masks

tokens = st.integers(1, 20)


def rows(mask: Bidirectional | Causal | Window | Band | Chunk, queries: int, keys: int) -> list[int]:
    """Visible keys of each of the last `queries` of `keys` positions."""
    return [sum(mask.visible(query, key) for key in range(keys)) for query in range(keys - queries, keys)]


def test_a_window_counts_the_query_itself() -> None:
    assert rows(Window(3), 6, 6) == [1, 2, 3, 3, 3, 3]  # case O55


@pytest.mark.parametrize(
    ("mask", "seen"),
    [
        (Causal(), [1, 2, 3, 4, 5, 6]),
        (Bidirectional(), [6] * 6),
        (Window(1), [1] * 6),
        (Band(1), [2, 3, 3, 3, 3, 2]),
        (Band(0), [1] * 6),
        (Chunk(4), [1, 2, 3, 4, 1, 2]),
    ],
)
def test_keys_seen_by_each_query(mask: Causal, seen: list[int]) -> None:
    assert rows(mask, 6, 6) == seen


def test_fewer_queries_than_keys_are_the_last_ones() -> None:
    assert rows(Causal(), 2, 6) == [5, 6]
    assert rows(Window(3), 2, 6) == [3, 3]


@given(masks, tokens)
def test_every_query_sees_itself(mask: Causal, length: int) -> None:
    assert all(mask.visible(position, position) for position in range(length))


@given(tokens, tokens)
def test_pair_counts_in_closed_form(length: int, width: int) -> None:
    """facts.md 4.1: causal T(T+1)/2, window T·W - W(W-1)/2, two-sided T(2R+1) - R(R+1)."""
    assert sum(rows(Causal(), length, length)) == length * (length + 1) // 2
    if length >= width:
        assert sum(rows(Window(width), length, length)) == length * width - width * (width - 1) // 2
        radius = width - 1
        assert sum(rows(Band(radius), length, length)) == length * (2 * radius + 1) - radius * (radius + 1)


@given(tokens, st.integers(0, 9))
def test_a_window_at_least_as_long_as_the_text_is_causal(length: int, more: int) -> None:
    assert rows(Window(length + more), length, length) == rows(Causal(), length, length)
