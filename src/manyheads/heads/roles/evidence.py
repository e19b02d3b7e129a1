"""What was found out about one role, for every head: score, control, interval, and a verdict that survives the number of tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from manyheads.heads.address import Head
from manyheads.heads.significance import benjamini_hochberg, bootstrap, paired_t, unit_mean

__all__ = [
    "HOLDS",
    "LEAST_EFFECT",
    "SINK",
    "Evidence",
    "Role",
    "Verdict",
    "beside",
    "corrected",
    "from_units",
    "weaker",
]

LEAST_EFFECT = 0.1
"""A head is given a role where its score is above the control by this much, unless another number is asked for: with many
windows a hair is significant."""

Verdict = Literal[
    "holds", "not above its control", "above its control, but by too little", "above its control, but below the criterion",
    "not tested",
]  # fmt: skip
HOLDS: Final = "holds"
SINK = "first token"
"""The role of nearly all heads of some models, which says little: it is told apart from the others."""


@dataclass(frozen=True)
class Role:
    """One head and one role. `chosen`: the score on the half that choices were made on; all other figures are of the other
    half: `score` and its 95% interval `low` to `high`, `null` (the control), `p_value` and `q_value`. `detail`: which offset,
    which direction. `verdict`: "holds", or why not."""

    name: str
    head: Head
    chosen: float
    score: float
    null: float
    low: float
    high: float
    p_value: float
    q_value: float
    detail: str
    verdict: Verdict

    @property
    def effect(self) -> float:
        """How far the score is above the control."""
        return self.score - self.null


@dataclass(frozen=True, eq=False)
class Evidence:
    """One role, all heads it was looked for in; arrays are (heads,). NaN where a head could not be tested.

    name       the role          what      what the score is a share of
    control    what it is held against; `null` is its value, of several controls the largest
    p_value    of several tests that all must be passed the largest, which is a p-value of "not all of them are"
    least_score   what the score must reach besides, 0 for nothing
    fdr        the false discovery rate that the verdicts hold at, over all tests of the report
    least_effect  how far the score must be above the control
    """

    name: str
    what: str
    control: str
    heads: tuple[Head, ...]
    detail: tuple[str, ...]
    chosen: np.ndarray
    score: np.ndarray
    null: np.ndarray
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    q_value: np.ndarray
    units: int
    least_score: float = 0.0
    chosen_null: np.ndarray | None = None
    fdr: float = 0.05
    least_effect: float = LEAST_EFFECT

    @property
    def effect(self) -> np.ndarray:
        """How far each score is above its control."""
        return self.score - self.null

    @property
    def ahead(self) -> np.ndarray:
        """The effect on the half that choices were made on, which heads are put in order by."""
        return self.chosen if self.chosen_null is None else self.chosen - self.chosen_null

    @property
    def holds(self) -> np.ndarray:
        """(heads,) boolean: above the control, by enough, after the correction."""
        return np.array([self.role(at).verdict == HOLDS for at in range(len(self.heads))], dtype=bool)

    def role(self, at: int) -> Role:
        """What is said of the head at this place of `heads`."""
        chosen, score, null, low, high, p_value, q_value = (
            float(each[at])
            for each in (self.chosen, self.score, self.null, self.low, self.high, self.p_value, self.q_value)
        )
        verdict = self._verdict(score, null, p_value=p_value, q_value=q_value)
        return Role(
            self.name, self.heads[at], chosen, score, null, low, high, p_value, q_value, self.detail[at], verdict
        )  # fmt: skip

    def ranked(self) -> list[int]:
        """The places of the heads that could be tested, the clearest first by the half that choices were made on."""
        ahead = self.ahead
        tested = [at for at in range(len(self.heads)) if not math.isnan(self.p_value[at])]
        return sorted(tested, key=lambda at: -float(ahead[at]))

    def _verdict(self, score: float, null: float, *, p_value: float, q_value: float) -> Verdict:
        if math.isnan(p_value):
            return "not tested"
        if not q_value <= self.fdr or score <= null:
            return "not above its control"
        if score - null < self.least_effect:
            return "above its control, but by too little"
        return HOLDS if score >= self.least_score else "above its control, but below the criterion"


def from_units(
    name: str,
    heads: tuple[Head, ...],
    values: np.ndarray,
    *,
    what: str,
    control: str,
    seed: int,
    detail: Sequence[str] = (),
    least_score: float = 0.0,
) -> Evidence:
    """Evidence from `values` (units, heads, 1 + controls), the score of each unit and what it is held against; a control that is
    NaN in all units of a head is none of that head. Units of even number are the half that choices are made on, the others are
    scored. The interval is a bootstrap over units; the test a paired t of them against each control, of which the largest p-value
    counts.
    """
    chosen, scored = unit_mean(values[0::2]), values[1::2]
    p_values = paired_t(scored[:, :, :1] - scored[:, :, 1:])
    low, high = bootstrap(scored[:, :, 0], seed=seed)
    means = unit_mean(scored)
    return Evidence(
        name, what, control, heads, tuple(detail) or ("",) * len(heads), chosen[:, 0], means[:, 0], _largest(means[:, 1:]), low,
        high, _largest(p_values), np.full(len(heads), np.nan), len(scored), least_score, _largest(chosen[:, 1:]),
    )  # fmt: skip


def _largest(values: np.ndarray) -> np.ndarray:
    """The largest of each row; NaN only where all of them are."""
    there = ~np.isnan(values)
    return np.where(there.any(1), np.where(there, values, -np.inf).max(1), np.nan)


def weaker(name: str, parts: Mapping[str, Evidence], *, what: str, control: str) -> Evidence:
    """A role that must show in each of `parts`: of every head the figures of the part where it is least above its control, and the
    largest p-value. NaN where a part could not be tested."""
    each = tuple(parts.values())
    effects = np.stack([one.effect for one in each])
    least = np.where(np.isnan(effects), -np.inf, effects).argmin(0)
    behind = np.stack([one.ahead for one in each])
    worst = np.where(np.isnan(behind), -np.inf, behind).argmin(0)
    heads = np.arange(effects.shape[1])

    def taken(name: str, which: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(getattr(one, name)) for one in each])[which, heads]

    detail = [
        "; ".join(f"{part} {one.score[at]:.2f} against {one.null[at]:.2f}" for part, one in parts.items()) for at in heads
    ]  # fmt: skip
    score, null, low, high = (taken(figure, least) for figure in ("score", "null", "low", "high"))
    return Evidence(
        name, what, control, each[0].heads, tuple(detail), taken("chosen", worst), score, null, low, high,
        np.max([one.p_value for one in each], axis=0), each[0].q_value, min(one.units for one in each),
        chosen_null=taken("chosen_null", worst),
    )  # fmt: skip


def corrected(
    found: Sequence[Evidence], *, fdr: float, least_effect: float = LEAST_EFFECT
) -> tuple[tuple[Evidence, ...], int]:
    """The same with q-values over all heads and roles together (Benjamini and Hochberg), and the number of tests."""
    if not found:
        return (), 0
    together = np.concatenate([one.p_value for one in found])
    q_values = benjamini_hochberg(together)
    ends = np.cumsum([len(one.heads) for one in found])
    parts = np.split(q_values, ends[:-1])
    made = tuple(
        replace(one, q_value=part, fdr=fdr, least_effect=least_effect) for one, part in zip(found, parts, strict=True)
    )
    return made, int((~np.isnan(together)).sum())


def beside(offset: int) -> str:
    """A key's place, -2 for two tokens before the query, in words that leave no doubt about the sign."""
    return f"{abs(offset)} {'before' if offset < 0 else 'after'}" if offset else "the token itself"
