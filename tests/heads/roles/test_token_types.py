"""Kinds of tokens against other token types: by hand, and what a head that likes single tokens may pass for."""

from __future__ import annotations

import math

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.heads.roles import TokenKinds  # noqa: E402
from manyheads.heads.roles.text_scores import TokenFigures  # noqa: E402
from manyheads.heads.roles.token_types import above_p, delimiter_p, first_p, rare_p, type_means  # noqa: E402

# Nine words that come twice, of mean 0 and variance 12/8; their values are logarithms of lifts.
OTHERS = (-2.0, -1.0, -1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 2.0)
T_8 = 2.306  # Student's t of 8 degrees exceeds it with probability 0.025 (any table)


def figures(lift: np.ndarray) -> TokenFigures:
    nothing = np.zeros((*lift.shape, 2))
    return TokenFigures(np.zeros(lift.shape[:2]), lift, nothing, nothing)


def text(*kind: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
    """(ids, lifts) of one window and one head: the nine words twice each, types 100 to 108, then (type, value)s."""
    tokens = [*((100 + at, value) for at, value in enumerate(OTHERS) for _ in range(2)), *kind]
    return np.array([[token for token, _ in tokens]]), np.array([[[value for _, value in tokens]]])


def test_means_by_type_leave_out_what_is_not_known() -> None:
    ids = np.array([[5, 7, 5], [7, 7, 9]])
    values = np.array([[[1.0, 4.0, 3.0]], [[2.0, np.nan, np.nan]]])  # two windows, one head
    types, counts, means = type_means(values, ids)
    assert types.tolist() == [5, 7, 9]
    assert counts.ravel().tolist() == [2, 2, 0]
    assert means.ravel().tolist()[:2] == [2.0, 3.0]
    assert math.isnan(means[2, 0])


def test_one_type_must_stand_out_as_a_single_draw() -> None:
    """t = value / (s √(1 + 1/9)), however often the one delimiter comes."""
    value = T_8 * math.sqrt(12 / 8 * (1 + 1 / 9))
    words = TokenKinds(frozenset({9}), frozenset())
    for often in (1, 50):
        ids, lift = text(*[(9, value)] * often)
        assert delimiter_p(figures(lift), ids, words)[0] == pytest.approx(0.025, abs=2e-5)


def test_more_types_are_weighted_as_they_come() -> None:
    """Of weights 3/4 and 1/4 the squares sum to 5/8."""
    ids, lift = text((9, 2.0), (9, 2.0), (9, 2.0), (8, 1.0))
    mean = 0.75 * 2.0 + 0.25 * 1.0
    scale = mean / (T_8 * math.sqrt(12 / 8 * (5 / 8 + 1 / 9)))
    words = TokenKinds(frozenset({8, 9}), frozenset())
    assert delimiter_p(figures(lift / np.where(ids[:, None] < 100, scale, 1.0)), ids, words)[0] == pytest.approx(
        0.025, abs=2e-5
    )


def test_rare_tokens_are_held_against_words_that_come_again() -> None:
    value = T_8 * math.sqrt(12 / 8 * (1 / 4 + 1 / 9))
    ids, lift = text(
        *((at, value) for at in range(1, 5)), (9, -50.0)
    )  # a delimiter that is shunned says nothing of words
    words = TokenKinds(frozenset({9}), frozenset(range(1, 5)))
    assert rare_p(figures(lift), ids, words)[0] == pytest.approx(0.025, abs=2e-5)


def test_too_few_other_types_say_nothing() -> None:
    ids, lift = np.array([[9, *([5] * 3), *([6] * 3)]]), np.zeros((1, 1, 7))
    words = TokenKinds(frozenset({9}), frozenset({9}))
    assert np.isnan(delimiter_p(figures(lift), ids, words)).all()
    assert np.isnan(rare_p(figures(lift), ids, words)).all()
    assert np.isnan(delimiter_p(figures(lift), ids, TokenKinds(frozenset({77}), frozenset()))).all()


def test_duplicates_of_one_token_are_no_role() -> None:
    """Weighted as they come, the one token that looks at its like would do; as one of six types it does not."""
    ids = np.array([[1, *([9] * 15), 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]])
    one = np.where(ids == 9, 0.8, 0.0)[:, None, :, None].repeat(2, -1)
    all_of_them = np.linspace(0.5, 0.6, ids.size)[None, None, :, None].repeat(2, -1)
    assert above_p(one, ids)[0] > 0.1
    assert above_p(all_of_them, ids)[0] < 1e-6
    all_of_them[..., 1] = 0.0  # no more than an even spread
    assert above_p(all_of_them, ids)[0] == 1.0


def test_the_first_place_must_stand_out_among_places() -> None:
    """One token always first: as far out as one draw of places and of tokens. Another in each window: only of places."""
    places = np.array(OTHERS)
    value = T_8 * math.sqrt(12 / 8 * (1 + 1 / 9))
    still = np.stack([places, places])[:, None]
    first = np.full((2, 1), value)
    assert first_p(first, still, [1, 1])[0] == pytest.approx(0.025, abs=2e-5)
    # Tokens differ by +1 and -1 between the windows, variance 2: it is in the mean of two tokens by half, and in one whole.
    moving = np.stack([places + 1, places - 1])[:, None]
    assert first_p(first, moving, [1, 2])[0] == pytest.approx(0.025, abs=2e-5)
    wider = T_8 * math.sqrt(12 / 8 * (1 + 1 / 9) + 2 * (1 - 1 / 2))
    assert first_p(np.full((2, 1), wider), moving, [1, 1])[0] == pytest.approx(0.025, abs=2e-5)


def test_random_preferences_of_single_tokens_pass_at_their_rate() -> None:
    """4,000 heads that like types by chance: 5% and 1% of the p-values are below 5% and 1%."""
    rng = np.random.default_rng(1)
    ids = np.concatenate([np.repeat(np.arange(40), rng.integers(2, 30, 40)), np.repeat([90, 91, 92], (70, 60, 5))])[
        None
    ]
    taste = rng.normal(0, 1.5, (4000, 100))
    lift = taste[:, ids[0]][None] + rng.normal(0, 0.5, (1, 4000, ids.size))
    found = delimiter_p(figures(lift), ids, TokenKinds(frozenset({90, 91, 92}), frozenset()))
    for rate in (0.05, 0.01):
        assert (found < rate).mean() == pytest.approx(rate, abs=4 * math.sqrt(rate * (1 - rate) / 4000))
