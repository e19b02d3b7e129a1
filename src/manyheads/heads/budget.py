"""How many heads can go before the loss is a given share higher: heads taken away one after another, least important first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.ablation import removal_curve
from manyheads.heads.address import Head
from manyheads.heads.metrics import Metric

__all__ = ["DRAWS", "Removable", "crossing", "removable"]

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


def removable(
    model: Any, batches: Sequence[Tensor], order: Sequence[Head], *, how: str = "zero", share: float = 0.01,
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
    found: dict[int, tuple[float, ...]] = {}

    def measure(counts: set[int]) -> None:
        new = sorted(counts - set(found))
        if new:
            told = removal_curve(model, batches, order, counts=new, how=how, metric=metric, say=lambda *_: say())
            for count, losses in zip(new, told.by_batch.tolist(), strict=True):
                found[count] = tuple(losses)

    def curve() -> tuple[list[int], np.ndarray]:
        counts = sorted(found)
        return counts, np.array([found[count] for count in counts])

    measure({0})
    for part in _SHARES:
        measure({max(total // part, 1)})
        middle, beyond = crossing(*curve(), share=share)
        if not beyond:
            break
    if not beyond:
        above = next(count for count in sorted(found) if count > middle or count == max(found))
        below = max(count for count in found if count <= middle)
        measure({below + (above - below) * n // (_BETWEEN + 1) for n in range(1, _BETWEEN + 1)})
    draw = np.random.default_rng(seed).integers(0, len(batches), (DRAWS, len(batches)))
    while True:
        counts, losses = curve()
        drawn = [crossing(counts, losses[:, each], share=share) for each in draw]
        if counts[-1] == total or sum(over for _, over in drawn) <= _TAIL * DRAWS:
            break
        measure({min(math.ceil(counts[-1] * _FURTHER), total)})
    heads, beyond = crossing(counts, losses, share=share)
    low, high = (float(np.percentile([count for count, _ in drawn], part)) for part in (2.5, 97.5))
    means = tuple(float(loss) for loss in losses.mean(1))
    whole = (int(number + _ROUNDING) for number in (heads, low, high))
    return Removable(how, share, total, *whole, beyond, tuple(counts), means)


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
