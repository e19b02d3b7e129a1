"""What the loss rises by without each head, told apart from chance as far as a budget goes.

1. To first order, for all heads on all windows (`heads.effects.first_order`): cheap, and poor alone.
2. Every head is taken out for real on two short windows, one of either half of the text: first order misses what is curved.
3. Those that promise most by either are taken out on whole windows, all on the same ones, each window with and without the head. The mean is
   that of the first-order estimates over all windows, corrected by what was measured (`heads.effects.two_phase`).
4. Benjamini and Hochberg over all heads. A head that was given up on is a test that failed: to stop for want of promise
   can only make a verdict rarer, so choosing on the same text is no bias.

The first position of causal attention is left alone in all of this: many models use it as a sink, and what happens to it reaches
every later token (`heads.effects.first_position`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from manyheads.heads.address import Head
from manyheads.heads.attention_modules import AttentionModule
from manyheads.heads.batches import Batch, as_batches
from manyheads.heads.effects.ablation_run import AblationRun, mean_outputs
from manyheads.heads.effects.first_order import FirstOrder, first_order_effects
from manyheads.heads.effects.metrics import Metric
from manyheads.heads.effects.two_phase import two_phase_estimate
from manyheads.heads.progress import Pace
from manyheads.heads.significance import benjamini_hochberg

__all__ = ["FDR", "SECONDS", "Budget", "Effects", "Texts", "head_effects"]

FDR = 0.05
SECONDS = 180.0
_SCREEN_SHARE = 0.6
_PREFIX_SHARE = 0.64  # of a forward, what a head costs on average where the layers before it are not run again


@dataclass(frozen=True)
class Budget:
    """How much is measured: `most` heads on `rounds` whole windows, all on short ones before; after `seconds` no new work is
    begun, but at least `least` heads are taken out, on `least_rounds` windows."""

    most: int = 28
    rounds: int = 8
    seconds: float = SECONDS
    least: int = 8
    least_rounds: int = 4


@dataclass(frozen=True)
class Texts:
    """Windows of a text and which half of it each is of (0 or 1), the first ones to be measured first; `short` ones to screen
    on."""

    windows: Sequence[Batch]
    halves: Sequence[int]
    short: Sequence[Batch]
    short_halves: Sequence[int]


@dataclass(frozen=True, eq=False)
class Effects:
    """What was found, by head, in the order of `heads`.

    loss       the best estimate of what the metric rises by; NaN for a head of which nothing is known
    low, high  its 95% interval; NaN where nothing was measured
    q_values   of Benjamini and Hochberg over all heads; 1 for heads that were not measured on whole windows
    windows    whole windows that the head was taken out on; `screened`: whether it was on the short ones
    expected   to first order, over all windows; `slopes`: |dL/dg|; None where the metric has none
    by_half    (2, heads): estimates from either half of the text alone; `costs`: what heads go in order by (`cost`)
    baseline   the metric of the whole model over all windows
    means      what heads gave instead, {path: (h, v)}
    stopped    whether time ran out before everything was measured that could have been
    """

    modules: tuple[AttentionModule, ...]
    heads: tuple[Head, ...]
    loss: np.ndarray
    low: np.ndarray
    high: np.ndarray
    q_values: np.ndarray
    windows: np.ndarray
    screened: np.ndarray
    expected: np.ndarray | None
    slopes: np.ndarray | None
    by_half: np.ndarray
    costs: Mapping[str, np.ndarray]
    baseline: float
    means: Mapping[str, Tensor]
    stopped: bool
    reused: bool
    first_seconds: float | None
    seconds: float

    @property
    def told_apart(self) -> np.ndarray:
        """Heads without which the loss is higher, at a false discovery rate of FDR over all heads."""
        found: np.ndarray = (self.q_values <= FDR) & (self.loss > 0)
        return found

    def cost(self, half: int, how: str) -> np.ndarray:
        """What each head may cost by one half of the text, to take heads out in order by.

        "mean": the estimate and two standard errors of its first-order part, so that heads whose cost is uncertain stay.
        "zero": the sizes of both slopes, towards the mean and towards nothing, and what was measured above the first: what
        nothing depends on goes. Measured on SmolLM2: estimates alone put first what their noise put there.
        """
        found: np.ndarray = self.costs[how][half]
        return found


def head_effects(
    model: Any, texts: Texts, *, metric: Metric | None = None, first_order: bool = True, every: bool = False,
    budget: Budget | None = None, pace: Pace | None = None,
) -> Effects:  # fmt: skip
    """The effects of all heads of `model` on `texts`, each head giving its mean instead.

    first_order  whether the metric has a slope
    every        all heads on all `rounds`, however long it takes
    """
    work = _Work(model, texts, metric, budget or Budget(), pace or Pace(lambda _: None))
    if every:
        work.budget = replace(work.budget, most=len(work.heads), seconds=float("inf"))
    work.estimate(first_order=first_order)
    chosen = list(range(len(work.heads)))
    if len(chosen) > work.budget.most:
        chosen = work.screen()
    work.measure(chosen)
    return work.result()


class _Work:
    """What is measured so far. Tables have a column a head."""

    def __init__(self, model: Any, texts: Texts, metric: Metric | None, budget: Budget, pace: Pace) -> None:
        self.budget, self.stopped = budget, False
        self._model, self._metric, self._pace, self._texts = model, metric, pace, texts
        self._windows, self._short = (as_batches(model, batches) for batches in (texts.windows, texts.short))
        self._began = time.perf_counter()
        self._deadline = self._began + budget.seconds
        with AblationRun(model, self._windows[:1], "zero", metric).open() as run:
            self.modules = run.modules
        self._at = [(row, number) for row, module in enumerate(self.modules) for number in module.numbers]
        self.heads = tuple(self.modules[row].head(number) for row, number in self._at)
        self._first: FirstOrder | None = None
        self._estimates = np.zeros((len(self._windows) + len(self._short), len(self.heads)))
        self._on_short = np.full((len(self._short), len(self.heads)), np.nan)
        self._on_whole = np.full((0, len(self.heads)), np.nan)
        self._means: Mapping[str, Tensor] = {}
        self._baselines: list[float] = []
        self._reused = True

    def estimate(self, *, first_order: bool) -> None:
        """First order, or the means alone where there is none."""
        if not first_order:
            self._means = mean_outputs(self._model, self._windows, later=True)
            return
        count = len(self._windows)
        self._pace.say(
            f"what each head is expected to cost, to first order: one backward pass on each of {count} windows"
        )
        given = [*self._windows, *self._short]
        self._first = first_order_effects(self._model, given, metric=self._metric, say=self._pace.counted("windows"))
        self._means = self._first.means
        self._estimates = self._columns(self._first.rises)

    def screen(self) -> list[int]:
        """Takes heads out on the short windows, and chooses those to measure: the highest over their standard error."""
        with self._removing(self._short) as run:
            each = self._seconds_a_head(run) * len(self._short)
            count = self._affordable(each, share=_SCREEN_SHARE, least=2 * self.budget.least, most=len(self.heads))
            chosen = self._likely(count)
            self._pace.say(
                f"taking {self._many(count)} out, one at a time, for their mean: {len(self._short)} short windows"
            )
            for number in range(len(self._short)):
                self._on_short[number] = self._taken(run, number, chosen, done=number, of=len(self._short))
        return self._promising(chosen)

    def _promising(self, screened: Sequence[int]) -> list[int]:
        """The heads to measure, by turns: two that first order is surest of, and the one that short windows put highest. The two
        see different heads: what is curved is nothing to the slope, and a short window is noise for what costs little."""
        many = len(self._windows)
        rough, errors = self._estimates[:many].mean(0), self._estimates[:many].std(0, ddof=1)
        sure = rough / np.where(errors > 0, np.maximum(errors, np.median(errors) / 2), 1.0)
        high = rough + (self._on_short - self._estimates[many:]).mean(0)
        by_slope, by_short = (sorted(screened, key=lambda at: -table[at]) for table in (sure, high))
        picked: dict[int, None] = {}
        for turn in range(3 * len(screened)):
            source = by_short if self._first is None or turn % 3 == 2 else by_slope
            picked[next(at for at in source if at not in picked)] = None
            if len(picked) == min(self.budget.most, len(screened)):
                break
        return list(picked)

    def measure(self, chosen: Sequence[int]) -> None:
        """Takes heads out on whole windows, the same for all of them. `chosen`: the most promising first."""
        rounds = min(self.budget.rounds, len(self._windows))
        with self._removing(self._windows) as run:
            each = self._seconds_a_head(run)
            least = min(self.budget.least, len(chosen))
            count = self._affordable(each * rounds, share=1.0, least=least, most=len(chosen))
            heads = sorted(chosen[:count])
            self._pace.say(f"taking {self._many(count)} out, one at a time, for their mean: {rounds} windows")
            for number in range(rounds):
                late = time.perf_counter() + each * count > self._deadline
                if late and number >= self.budget.least_rounds:
                    self.stopped = True
                    break
                row = self._taken(run, number, heads, done=number, of=rounds)
                self._on_whole = np.vstack((self._on_whole, row))
            self._reused = run.reused

    def _likely(self, count: int) -> list[int]:
        """The heads that first order expects to matter most; without it, some of every layer."""
        if self._first is None:
            return sorted({round(at) for at in np.linspace(0, len(self.heads) - 1, count).tolist()})
        order = np.argsort(-self._estimates[: len(self._windows)].mean(0), kind="stable")
        return sorted(order[:count].tolist())

    def _removing(self, batches: Sequence[Batch]) -> Any:
        return AblationRun(self._model, batches, "mean", self._metric, positions="later", means=self._means).open()

    def _seconds_a_head(self, run: AblationRun) -> float:
        """What a head costs on a window, as far as one pass tells."""
        began = time.perf_counter()
        run.measure(0)
        return (time.perf_counter() - began) * _PREFIX_SHARE

    def _affordable(self, each: float, *, share: float, least: int, most: int) -> int:
        """Heads that there is time for."""
        left = self._deadline - time.perf_counter()
        if left == float("inf") or each * most <= left * share:
            return most
        self.stopped = True
        return max(min(least, most), int(max(left, 0.0) * share / each))

    def _taken(self, run: AblationRun, number: int, heads: Sequence[int], *, done: int, of: int) -> np.ndarray:
        told = self._pace.counted("passes")
        jobs = [(self._at[at][0], (self._at[at][1],)) for at in heads]
        added, whole, _ = run.added(number, jobs, say=lambda more: told(done * len(jobs) + more, of * len(jobs)))
        self._baselines.append(whole)
        return self._columns(added[None])[0]

    def _columns(self, tables: Tensor) -> np.ndarray:
        """(batches, rows, heads) with a column a head."""
        rows, numbers = zip(*self._at, strict=True)
        found: np.ndarray = tables[:, list(rows), list(numbers)].numpy()
        return found

    def _many(self, count: int) -> str:
        return f"all {count} heads" if count == len(self.heads) else f"{count} of {len(self.heads)} heads"

    def result(self) -> Effects:
        """What all of it says."""
        many, known = len(self._windows), self._first is not None
        whole, short = ~np.isnan(self._on_whole).all(0), ~np.isnan(self._on_short).all(0)
        loss = np.where(known, self._estimates[:many].mean(0), np.nan) * np.ones(len(self.heads))
        low, high = np.full(loss.shape, np.nan), np.full(loss.shape, np.nan)
        p_values = np.ones(loss.shape)
        parts = (
            (short & ~whole, self._estimates, self._on_short, range(many, len(self._estimates))),
            (whole, self._estimates[:many], self._on_whole, range(len(self._on_whole))),
        )
        for which, estimates, measured, at in parts:
            if which.any():
                given = estimates[:, which] if known else measured[:, which]
                found = two_phase_estimate(given, measured[:, which], at if known else range(len(measured)))
                loss[which] = found.means
                low[which], high[which] = found.interval
                if which is whole:
                    p_values[which] = np.nan_to_num(found.p_values, nan=1.0)
        return Effects(
            self.modules, self.heads, loss, low, high, benjamini_hochberg(p_values), whole * len(self._on_whole), short,
            self._estimates[:many].mean(0) if known else None,
            self._columns(self._first.slopes)[:many].mean(0) if self._first is not None else None, *self._by_half(known=known),
            float(self._first.baselines[:many].mean()) if self._first is not None else float(np.mean(self._baselines)),
            self._means, self.stopped, self._reused, self._first.seconds if self._first is not None else None,
            time.perf_counter() - self._began,
        )  # fmt: skip

    def _by_half(self, *, known: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """From either half of the text alone: its first-order mean, corrected by whole windows where heads were taken out on
        them, else by the short one, as far as the short windows of the two halves agree (Kelley's shrinkage); and the costs."""
        texts, many = self._texts, len(self._windows)
        halves, short_halves = np.array(texts.halves), np.array(texts.short_halves)
        on_short = self._on_short - self._estimates[many:]
        on_whole = self._on_whole - self._estimates[: len(self._on_whole)]
        trust = _agreement(on_short[short_halves == 0], on_short[short_halves == 1]) if known else 1.0
        slopes = None if self._first is None else self._columns(self._first.slopes)[:many]
        found, bounds, sizes = [], [], []
        for half in (0, 1):
            whole, short = on_whole[halves[: len(on_whole)] == half], on_short[short_halves == half]
            off = np.where(np.isnan(_mean(whole)), trust * _mean(short), _mean(whole))
            rough = self._estimates[:many][halves == half]
            found.append(rough.mean(0) + np.nan_to_num(off) if known else off)
            error = rough.std(0, ddof=1) / np.sqrt(len(rough)) if len(rough) > 1 else 0.0
            bounds.append(found[-1] + 2 * error)
            size = 0.0 if slopes is None else np.abs(rough).mean(0) + slopes[halves == half].mean(0)
            sizes.append(size + np.maximum(np.nan_to_num(off), 0))
        return np.array(found), {"mean": np.array(bounds), "zero": np.array(sizes)}


def _mean(rows: np.ndarray) -> np.ndarray:
    """(columns,): NaN where a column has nothing."""
    there = ~np.isnan(rows)
    count = there.sum(0)
    found: np.ndarray = np.where(count > 0, np.where(there, rows, 0.0).sum(0) / np.maximum(count, 1), np.nan)
    return found


def _agreement(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of two measurements of the same heads, 0 where it is below or cannot be had."""
    a, b = _mean(one), _mean(other)
    both = ~np.isnan(a) & ~np.isnan(b)
    if both.sum() < 3 or not a[both].std() or not b[both].std():
        return 0.0
    return max(float(np.corrcoef(a[both], b[both])[0, 1]), 0.0)
