"""A mean of what is dear, corrected by what is cheap: by hand, against the plain mean, and its coverage on drawn texts."""

from __future__ import annotations

import numpy as np
import pytest

from manyheads.heads.effects.two_phase import two_phase_estimate


def test_by_hand() -> None:
    """Estimates 1, 2, 3, 6; the first two were measured as 2 and 4, which is 1 and 2 more: 3 + 1.5.

    s² of the estimates is 14/3, of what they are off 1/2; the two go together by 1/2: 14/12 + 1/4 + 2 · 1/2 / 4.
    """
    found = two_phase_estimate(np.array([[1.0], [2.0], [3.0], [6.0]]), np.array([[2.0], [4.0]]), [0, 1])
    assert found.means.tolist() == [4.5]
    assert found.errors[0] ** 2 == pytest.approx(14 / 12 + 1 / 4 + 1 / 4)
    assert found.degrees.tolist() == [int((14 / 12 + 1 / 4) ** 2 / ((14 / 12) ** 2 / 3 + (1 / 4) ** 2 / 1))]


def test_where_all_were_measured_estimates_do_not_matter() -> None:
    measured = np.array([[1.0], [3.0], [5.0]])
    found = two_phase_estimate(np.array([[7.0], [-1.0], [2.0]]), measured, range(3))
    low, high = found.interval
    assert found.means.tolist() == [3.0]
    assert (high - low)[0] / 2 == pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-5)  # Student's t of 2 degrees, 97.5%
    # 2 P(T > 3 / (2/sqrt 3)) of 2 degrees: the distribution is 1/2 + t / (2 sqrt(2 + t²)) then.
    t = 3 / (2 / 3**0.5)
    assert found.p_values[0] == pytest.approx(1 - t / (2 + t * t) ** 0.5)


def test_one_text_has_no_error_and_equal_texts_the_sign_test() -> None:
    found = two_phase_estimate(np.array([[1.0], [2.0]]), np.array([[2.0]]), [0])
    assert found.means.tolist() == [2.5]
    assert all(np.isnan(array).all() for array in (found.errors, *found.interval, found.p_values))
    alike = two_phase_estimate(np.zeros((4, 2)), np.array([[1.0, 0.0]] * 4), range(4))
    assert alike.p_values.tolist() == [2.0**-3, 1.0]


def test_it_covers_as_often_as_it_says_and_is_narrower_than_what_was_measured_alone() -> None:
    """4,000 texts drawn 24 at a time, of which 8 are measured: true means 0.1 and 0 under skewed noise."""
    draw = np.random.default_rng(7)
    cheap = draw.exponential(1.0, (24, 4_000)) - 1
    off = 0.1 + 0.3 * draw.standard_normal((24, 4_000))
    found = two_phase_estimate(cheap, (cheap + off)[:8], range(8))
    low, high = found.interval
    covered = ((low <= 0.1) & (high >= 0.1)).mean()
    assert 0.92 < covered < 0.98
    alone = (cheap + off)[:8].std(0, ddof=1) / 8**0.5
    assert np.median(found.errors) < 0.75 * np.median(alone)
