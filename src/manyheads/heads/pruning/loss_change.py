"""What a loss changes by when heads go, with an interval: the same windows of text with and without them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from manyheads.heads.address import Heads
from manyheads.heads.batches import Batch, BatchLike, as_batches
from manyheads.heads.effects import Metric, measured
from manyheads.heads.pruning.remove import mask
from manyheads.heads.significance import mean_interval
from manyheads.models.door.door import open_door

__all__ = ["LossChange", "measure_loss_change"]


@dataclass(frozen=True)
class LossChange:
    """Losses with and without heads, of each window (a batch) and what the window counts for (its tokens).

    before, after  the means over all windows, by their weights; `change`: after - before
    interval       95% of the change: Student's t of the windows' differences, None where there is one window. Of windows of
                   one text it holds for text like it
    """

    whole: tuple[float, ...]
    without: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def before(self) -> float:
        """The mean loss as it is."""
        return _mean(self.whole, self.weights)

    @property
    def after(self) -> float:
        """The mean loss without the heads."""
        return _mean(self.without, self.weights)

    @property
    def change(self) -> float:
        """What it rises by."""
        return self.after - self.before

    @property
    def interval(self) -> tuple[float, float] | None:
        """95% of the change."""
        if len(self.weights) < 2:
            return None
        low, high = mean_interval(np.array(self.without) - np.array(self.whole), np.array(self.weights))
        return float(low), float(high)


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(value * weight for value, weight in zip(values, weights, strict=True)) / math.fsum(weights)


def measure_loss_change(
    model: Any, batches: Sequence[BatchLike], heads: Heads, *, metric: Metric | None = None
) -> LossChange:  # fmt: skip
    """The loss of `model` on each of `batches` as it is, and with `heads` (original numbers) masked."""
    given = as_batches(model, batches)
    whole = _losses(model, given, metric)
    with open_door(model, gates=[mask(model, heads)], mode="eval"):
        without = _losses(model, given, metric)
    return LossChange(
        tuple(value for value, _ in whole), tuple(value for value, _ in without), tuple(weight for _, weight in whole)
    )  # fmt: skip


@torch.no_grad()
def _losses(model: Any, batches: Sequence[Batch], metric: Metric | None) -> list[tuple[float, float]]:
    found = [measured(model, batch, metric) for batch in batches]
    return [(float(value), float(weight)) for value, weight in found]
