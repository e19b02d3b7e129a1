"""Intervals and tests against tables, closed forms and the worked example of the paper."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

np = pytest.importorskip("numpy")

from manyheads.heads.significance import (  # noqa: E402
    benjamini_hochberg,
    binomial_tail,
    bootstrap,
    mean_interval,
    paired_t,
    student_quantile,
    student_tail,
    unit_mean,
    wilson,
)


def test_wilson_of_eight_in_ten() -> None:
    low, high = wilson(8, 10)  # Newcombe 1998, method 3, rounds to these
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0


def test_binomial_tail_by_counting() -> None:
    assert binomial_tail(8, 10) == pytest.approx(56 / 1024)  # 45 + 10 + 1 ways of 2^10
    assert binomial_tail(0, 10) == 1.0
    assert binomial_tail(2, 3, share=1 / 3) == pytest.approx(7 / 27)
    assert binomial_tail(10, 10) == pytest.approx(2**-10)
    assert binomial_tail(1, 1000) == pytest.approx(1.0)


@pytest.mark.parametrize(("successes", "trials"), [(510, 1000), (600, 1000), (900, 1000), (3, 40)])
def test_binomial_tail_in_whole_numbers(successes: int, trials: int) -> None:
    exact = Fraction(sum(math.comb(trials, k) for k in range(successes, trials + 1)), 2**trials)
    assert binomial_tail(successes, trials) == pytest.approx(float(exact), rel=1e-9)


@pytest.mark.parametrize(
    ("t", "degrees", "tail"), [(1.833, 9, 0.05), (2.228, 10, 0.025), (2.764, 10, 0.01), (3.646, 30, 0.0005)]
)
def test_student_against_the_printed_table(t: float, degrees: int, tail: float) -> None:
    assert student_tail(t, degrees) == pytest.approx(tail, rel=2e-3)
    assert student_tail(-t, degrees) == pytest.approx(1 - tail, rel=1e-4)


@pytest.mark.parametrize("t", [0.01, 0.5, 2.0, 40.0, 1e4])
def test_student_against_closed_forms(t: float) -> None:
    assert student_tail(t, 1) == pytest.approx(math.atan(1 / t) / math.pi, rel=1e-9)
    assert student_tail(t, 2) == pytest.approx(1 / (math.sqrt(2 + t * t) * (math.sqrt(2 + t * t) + t)), rel=1e-6)


def test_paired_t_by_hand() -> None:
    # mean 2, standard error 1 / sqrt 3: t = 2 sqrt 3 with two degrees of freedom, the closed form above
    expected = 0.5 - math.sqrt(12) / (2 * math.sqrt(14))
    found = paired_t(np.array([[1.0, -1.0, np.nan], [2.0, -2.0, 4.0], [3.0, -3.0, np.nan]]))
    assert found[0] == pytest.approx(expected)
    assert found[1] == pytest.approx(1 - expected)
    assert math.isnan(found[2])  # one unit is no sample


def test_paired_t_of_equal_differences_is_a_sign_test() -> None:
    found = paired_t(np.array([[0.5, 0.0, -0.5]] * 4))
    assert found.tolist() == [0.5**4, 1.0, 1.0]


def test_under_the_null_a_twentieth_is_below_a_twentieth() -> None:
    noise = np.random.default_rng(7).normal(size=(10, 4000))
    share = (paired_t(noise) < 0.05).mean()
    assert share == pytest.approx(0.05, abs=4 * math.sqrt(0.05 * 0.95 / 4000))


def test_benjamini_hochberg_on_the_papers_example() -> None:
    # Benjamini and Hochberg 1995, section 4: 15 comparisons, of which the first four are rejected at 0.05
    p = [
        0.0001,
        0.0004,
        0.0019,
        0.0095,
        0.0201,
        0.0278,
        0.0298,
        0.0344,
        0.0459,
        0.3240,
        0.4262,
        0.5719,
        0.6528,
        0.7590,
        1.0,
    ]
    q = benjamini_hochberg(p[::-1])[::-1]
    assert (q <= 0.05).tolist() == [True] * 4 + [False] * 11
    assert q[3] == pytest.approx(0.0095 * 15 / 4)
    assert q[-1] == 1.0


def test_what_was_not_tested_is_no_test() -> None:
    q = benjamini_hochberg([0.01, math.nan, 0.04])
    assert q[[0, 2]].tolist() == pytest.approx([0.02, 0.04])
    assert math.isnan(q[1])


def test_bootstrap_of_a_share_is_as_wide_as_the_binomial() -> None:
    low, high = bootstrap(np.array([[1.0], [0.0]] * 200), seed=3, times=4000)
    half = 1.96 * math.sqrt(0.25 / 400)
    assert (low[0], high[0]) == pytest.approx((0.5 - half, 0.5 + half), abs=0.006)


def test_units_with_nothing_to_score_are_left_out() -> None:
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    mean = unit_mean(values)
    assert mean[0] == 2.0
    assert math.isnan(mean[1])
    low, high = bootstrap(values, seed=0)
    assert 1.0 <= low[0] <= 2.0 <= high[0] <= 3.0
    assert math.isnan(low[1])
    assert math.isnan(high[1])


@pytest.mark.parametrize(("degrees", "t"), [(1, 12.706205), (7, 2.364624), (30, 2.042272)])
def test_students_quantile_is_that_of_the_tables(degrees: int, t: float) -> None:
    assert student_quantile(degrees) == pytest.approx(t, abs=1e-6)


def test_the_interval_of_a_mean_by_hand() -> None:
    """1, 2, 3: mean 2, s = 1, n = 3, t of two degrees 4.302653: 2 +- 4.302653 / sqrt(3) = 2.484138."""
    low, high = mean_interval(np.array([[1.0], [2.0], [3.0]]), np.ones(3))
    assert (low[0], high[0]) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert np.isnan(mean_interval(np.array([[1.0]]), np.ones(1))).all()
