"""How sure a score is: intervals, one-sided tests, and the correction for having made thousands of them.

Written out because scipy is a large thing to install for five formulas. Arrays have the units (windows, sentences) on the
first axis; NaN marks a unit that had nothing to score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

__all__ = ["benjamini_hochberg", "binomial_tail", "bootstrap", "mean_interval", "paired_t", "student_quantile",
           "student_tail", "student_tails", "two_sided", "unit_mean", "wilson"]  # fmt: skip

_Z_95 = 1.959963984540054
_SAME = 1e-12


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """The 95% interval of a share: (p + z²/2n ± z √(p(1-p)/n + z²/4n²)) / (1 + z²/n). Source: E. B. Wilson 1927.

    (0, 1) without a trial.
    """
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, _Z_95**2 / trials
    middle = (share + z2 / 2) / (1 + z2)
    half = math.sqrt(z2 * (share * (1 - share) + z2 / 4)) / (1 + z2)
    return max(0.0, middle - half), min(1.0, middle + half)


def binomial_tail(successes: int, trials: int, *, share: float = 0.5) -> float:
    """P(X >= successes) for X of `trials` draws that each succeed with probability `share`: the regularised incomplete beta
    I_share(successes, trials - successes + 1) (DLMF 8.17.5)."""
    if successes <= 0:
        return 1.0
    return _incomplete_beta(share, successes, trials - successes + 1)


def unit_mean(values: np.ndarray) -> np.ndarray:
    """The mean over the units that had something to score; NaN where none had."""
    there = ~np.isnan(values)
    count = there.sum(0)
    total = np.where(there, values, 0.0).sum(0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def bootstrap(values: np.ndarray, *, seed: int, times: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """The 95% percentile interval of the mean over units, from `times` draws of as many units with replacement."""
    units = values.shape[0]
    flat = values.reshape(units, -1)
    if units == 0:
        nothing = np.full(values.shape[1:], np.nan)
        return nothing, nothing.copy()
    drawn = np.random.default_rng(seed).multinomial(units, [1 / units] * units, size=times).astype(np.float64)
    there = ~np.isnan(flat)
    count = drawn @ there
    means = np.where(count > 0, (drawn @ np.where(there, flat, 0.0)) / np.maximum(count, 1), np.nan)
    low, high = np.full(flat.shape[1], np.nan), np.full(flat.shape[1], np.nan)
    some = there.any(0)
    if some.any():
        low[some], high[some] = np.nanquantile(means[:, some], [0.025, 0.975], axis=0)
    return low.reshape(values.shape[1:]), high.reshape(values.shape[1:])


def paired_t(differences: np.ndarray) -> np.ndarray:
    """One-sided p-values that the mean difference (units on axis 0) is above zero: Student's t of the unit means.

    Where all differences are equal the t statistic is no number, and the sign test answers: 2^-n if they are above zero.
    NaN with fewer than two units.
    """
    flat = differences.reshape(differences.shape[0], -1)
    there = ~np.isnan(flat)
    counts = there.sum(0)
    mean = unit_mean(flat)
    squares = np.where(there, (flat - mean) ** 2, 0.0).sum(0)
    answer = np.full(flat.shape[1], np.nan)
    for at, (n, middle, square) in enumerate(zip(counts, mean, squares, strict=True)):
        if n < 2:
            continue
        error = math.sqrt(square / (n - 1) / n)
        if error <= _SAME * abs(middle) or error == 0:
            answer[at] = 0.5 ** int(n) if middle > 0 else 1.0
        else:
            answer[at] = student_tail(float(middle) / error, int(n) - 1)
    return answer.reshape(differences.shape[1:])


def mean_interval(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The 95% interval of the weighted mean over units (axis 0): mean ± t s, with n - 1 degrees of freedom and

        s² = n / (n - 1) · sum of w² (x - mean)² / (sum of w)²

    which for equal weights is the variance of a mean. NaN below two units. Source: the estimate for a ratio in Cochran 1977,
    Sampling Techniques, chapter 6.
    """
    units, share = len(values), weights / weights.sum()
    mean = np.tensordot(share, values, 1)
    if units < 2:
        return np.full_like(mean, np.nan), np.full_like(mean, np.nan)
    error = np.sqrt(np.tensordot(share**2, (values - mean) ** 2, 1) * units / (units - 1))
    half = student_quantile(units - 1) * error
    return mean - half, mean + half


def student_quantile(degrees: int, tail: float = 0.025) -> float:
    """The t that Student's t exceeds with probability `tail`, below one half."""
    low, high = 0.0, 1.0
    while student_tail(high, degrees) > tail:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, degrees) > tail else (low, middle)
    return (low + high) / 2


def student_tail(t: float, degrees: int) -> float:
    """P(T >= t) for Student's t: half the regularised incomplete beta I_x(ν/2, 1/2) at x = ν / (ν + t²)."""
    half = 0.5 * _incomplete_beta(degrees / (degrees + t * t), degrees / 2, 0.5)
    return half if t >= 0 else 1.0 - half


def student_tails(above: np.ndarray, error: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """`student_tail` of each `above` / `error`; without any spread 0 for what is above and 1 for what is not; NaN stays NaN."""
    found = np.full(above.shape, np.nan)
    for at in np.flatnonzero(~np.isnan(above)):
        spread = float(error[at])
        sure = 0.0 if above[at] > 0 else 1.0
        found[at] = student_tail(float(above[at]) / spread, int(degrees[at])) if spread > 0 else sure
    return found


def two_sided(means: np.ndarray, errors: np.ndarray, degrees: np.ndarray) -> np.ndarray:
    """Two-sided p-values, by Student's t, that each of `means` is 0; NaN where there is no error to hold it against.

    Without any spread the t statistic is no number, and the sign test answers.
    """
    found = np.full(means.shape, np.nan)
    for at in np.flatnonzero(~np.isnan(means) & (degrees > 0)):
        mean, error, count = abs(float(means.flat[at])), float(errors.flat[at]), int(degrees.flat[at])
        alike = 1.0 if mean == 0 else 2.0**-count
        found.flat[at] = alike if error <= _SAME * mean else 2 * student_tail(mean / error, count)
    return found


def _incomplete_beta(x: float, a: float, b: float) -> float:
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    if x < (a + 1) / (a + b + 2):
        return front * _continued(x, a, b) / a
    return 1.0 - front * _continued(1 - x, b, a) / b


def _continued(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta (DLMF 8.17.22), evaluated forwards (Lentz)."""
    tiny = 1e-300
    c, d = 1.0, 1 - (a + b) * x / (a + 1)
    d = 1 / (d if abs(d) > tiny else tiny)
    value = d
    for m in range(1, 500):
        for factor in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 + factor * d
            d = 1 / (d if abs(d) > tiny else tiny)
            c = 1 + factor / c
            c = c if abs(c) > tiny else tiny
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def benjamini_hochberg(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """q-values: the lowest false discovery rate at which each test is accepted; NaN stays NaN and counts as no test.

    q of the i-th smallest of m is the minimum over j >= i of m p_j / j. Holds for independent tests and for those that rise
    and fall together. Source: Benjamini and Hochberg 1995; Benjamini and Yekutieli 2001, theorem 1.2.
    """
    p = np.asarray(p_values, dtype=np.float64)
    q = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    scaled = p[order] * len(order) / np.arange(1, len(order) + 1)
    q[order] = np.minimum(1.0, np.minimum.accumulate(scaled[::-1])[::-1])
    return q
