"""The mean of what is dear to measure, measured on a few texts and estimated cheaply on many: double sampling.

    mean = mean of the estimates over all texts + mean of (measured - estimated) over those that were measured

It is unbiased however poor the estimates are, and the better they follow what is measured, the less it varies. Source: Cochran
1977, Sampling Techniques, section 12.9 (the difference estimator).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from manyheads.heads.significance import student_quantile, two_sided

__all__ = ["Estimate", "two_phase_estimate"]

_SAME = 1e-12


@dataclass(frozen=True, eq=False)
class Estimate:
    """Means of several things, their standard errors, and degrees of freedom (Satterthwaite); NaN errors with one text."""

    means: np.ndarray
    errors: np.ndarray
    degrees: np.ndarray

    @property
    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        """95%, Student's t."""
        quantiles = {degrees: student_quantile(degrees) for degrees in set(self.degrees.tolist()) if degrees > 0}
        half = np.array([quantiles.get(degrees, np.nan) for degrees in self.degrees.tolist()]) * self.errors
        return self.means - half, self.means + half

    @property
    def p_values(self) -> np.ndarray:
        """Two-sided, that the mean is 0; NaN where there is no error to hold it against."""
        return two_sided(self.means, self.errors, self.degrees)


def two_phase_estimate(estimated: np.ndarray, measured: np.ndarray, which: Sequence[int]) -> Estimate:
    """Means over texts (axis 0) of `measured` (n, things), taken on the texts `which` of the `estimated` (N, things).

    Variance: s²(estimated) / N + s²(measured - estimated) / n + 2 s(estimated, measured - estimated) / N, the last term only
    where it is above 0, which leaves the error rather too large. Where every text was measured it is s²(measured) / N.
    """
    apart = measured - estimated[list(which)]
    many, few = len(estimated), len(apart)
    means = estimated.mean(0) + apart.mean(0)
    if few < 2:
        nothing = np.full(means.shape, np.nan)
        return Estimate(means, nothing, np.zeros(means.shape, dtype=np.int64))
    if few == many:
        return Estimate(means, measured.std(0, ddof=1) / np.sqrt(few), np.full(means.shape, few - 1))
    first, second = estimated.var(0, ddof=1) / many, apart.var(0, ddof=1) / few
    both = estimated[list(which)]
    cross = 2 * ((both - both.mean(0)) * (apart - apart.mean(0))).sum(0) / (few - 1) / many
    total = first**2 / (many - 1) + second**2 / (few - 1)
    degrees = np.where(total > 0, (first + second) ** 2 / np.where(total > 0, total, 1), few - 1)
    return Estimate(means, np.sqrt(first + second + np.maximum(cross, 0)), np.floor(degrees + _SAME).astype(np.int64))
