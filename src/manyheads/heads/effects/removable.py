"""How many heads can go before the loss is a given share higher: heads taken away one after another, least important first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import OneHead
from manyheads.heads.batches import as_batches
from manyheads.heads.effects.ablation_run import AblationRun
from manyheads.heads.effects.metrics import Metric

__all__ = ["DRAWS", "Removable", "count_removable", "crossing"]

DRAWS = 1_000
_SHARES = (64, 16, 8, 4, 2, 1)
_BETWEEN = 2
_FURTHER = 1.25
_TAIL = 0.025
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Removable:
    """How many heads can go for `share` more loss.

    heads, low, high   the number, and its 95% interval over the batches (percentiles of bootstrap draws)
    beyond             whether all that were tried could go, so that the number is a least one
    counts, losses     what was measured: the mean loss with so many heads gone
    """

    how: str
    share: float
    total: int
    heads: int
    low: int
    high: int
    beyond: bool
    counts: tuple[int, ...]
    losses: tuple[float, ...]


def count_removable(
    model: Any, batches: Sequence[Tensor], order: Sequence[OneHead], *, how: str = "zero", share: float = 0.01,
    metric: Metric | None = None, seed: int = 0, say: Callable[[], None] = lambda: None,
) -> Removable:  # fmt: skip
    """Takes away more and more of `order` on `batches` until the loss is above (1 + share) times that of the whole model.

    More and more heads are tried until the mean crosses, two numbers between the last two, and then more until 97.5% of the
    draws cross or all heads are gone, so that the interval does not end where trying ended; between two numbers that were
    tried it is taken to go straight. `how`: "zero", "mean" or "resample". The order should come from other text. `say` is
    called after each pass. Raises ManyheadsError where there are fewer than two batches, which an interval needs.
    """
    if len(batches) < 2:
        raise ManyheadsError(f"{len(batches)} batch of text: an interval of how many heads can go needs at least 2")
    total = len(order)
    with AblationRun(model, as_batches(model, batches), how, metric).open() as run:
        curve = _Curve(run, order, say)
        _climb(curve, total, share)
        draw = np.random.default_rng(seed).integers(0, len(batches), (DRAWS, len(batches)))
        drawn = _until_drawn(curve, total, share, draw)
    heads, beyond = crossing(*curve.losses, share=share)
    interval = (float(np.percentile([count for count, _ in drawn], part)) for part in (2.5, 97.5))
    whole, low, high = (int(number + _ROUNDING) for number in (heads, *interval))
    counts, losses = curve.losses
    means = tuple(float(loss) for loss in losses.mean(1))
    return Removable(how, share, total, whole, low, high, beyond, tuple(counts), means)


class _Curve:
    """The losses on each batch with so many heads gone, of the numbers that were tried."""

    def __init__(self, run: AblationRun, order: Sequence[OneHead], say: Callable[[], None]) -> None:
        self._run, self._order, self._say = run, order, say
        self._found: dict[int, tuple[float, ...]] = {}

    def measure(self, *counts: int) -> None:
        """Tries these numbers, each once."""
        new = sorted(set(counts) - set(self._found))
        if new:
            told = self._run.together(self._order, new, say=lambda *_: self._say())
            self._found |= dict(zip(new, map(tuple, told.by_batch.tolist()), strict=True))

    @property
    def losses(self) -> tuple[list[int], np.ndarray]:
        """Numbers of heads, rising, and losses (numbers, batches)."""
        counts = sorted(self._found)
        return counts, np.array([self._found[count] for count in counts])


def _climb(curve: _Curve, total: int, share: float) -> None:
    """More and more heads until the mean crosses, and two numbers between the last two."""
    curve.measure(0)
    for part in _SHARES:
        curve.measure(max(total // part, 1))
        middle, beyond = crossing(*curve.losses, share=share)
        if not beyond:
            break
    if not beyond:
        counts = curve.losses[0]
        below = max(count for count in counts if count <= middle)
        above = min((count for count in counts if count > middle), default=below)
        curve.measure(*(below + (above - below) * n // (_BETWEEN + 1) for n in range(1, _BETWEEN + 1)))


def _until_drawn(curve: _Curve, total: int, share: float, draw: np.ndarray) -> list[tuple[float, bool]]:
    """Where each draw of batches crosses, after as many heads were tried as nearly all of them need."""
    while True:
        counts, losses = curve.losses
        drawn = [crossing(counts, losses[:, each], share=share) for each in draw]
        if counts[-1] == total or sum(beyond for _, beyond in drawn) <= _TAIL * len(draw):
            return drawn
        curve.measure(min(math.ceil(counts[-1] * _FURTHER), total))


def crossing(counts: Sequence[int], losses: np.ndarray, *, share: float) -> tuple[float, bool]:
    """Where the mean of `losses` (counts, batches) first passes (1 + share) times that of none gone, and whether it never does.

    `counts` rise from 0. Straight lines between the counts; the last count where it never passes.
    """
    means = losses.mean(1)
    limit = means[0] + share * abs(means[0])
    above = np.flatnonzero(means > limit)
    if not len(above):
        return float(counts[-1]), True
    at = int(above[0])
    part = (limit - means[at - 1]) / (means[at] - means[at - 1])
    return float(counts[at - 1] + part * (counts[at] - counts[at - 1])), False
