"""What heads write at the first position of causal attention, which many models use as a sink.

What is done there reaches every later token, in whatever window: one odd first token can make the whole mean. So it is left alone
in `heads.effects.budgeted_ablation`, and measured apart here, on the beginnings of windows: all heads of a layer together first, and then one at a
time in the layers in which that costs most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from manyheads.heads.address import Head
from manyheads.heads.attention_modules import AttentionModule
from manyheads.heads.batches import Batch, as_batches
from manyheads.heads.effects.ablation_run import AblationRun, Job
from manyheads.heads.effects.metrics import Metric
from manyheads.heads.effects.replaced_outputs import has_first
from manyheads.heads.effects.two_phase import two_phase_estimate
from manyheads.heads.progress import Pace

__all__ = ["AtFirst", "first_position_effects"]

_LAYERS = 2


@dataclass(frozen=True)
class AtFirst:
    """What the metric rises by when one head gives its mean at the first position alone.

    loss, low, high  the mean over the windows and its 95% interval; largest  that of the window in which it is furthest from 0
    by_half          the means over the windows of either half of the text
    """

    head: Head
    loss: float
    low: float
    high: float
    largest: float
    by_half: tuple[float, float]


def first_position_effects(
    model: Any, batches: Sequence[Batch], halves: Sequence[int], *, means: Mapping[str, Tensor], metric: Metric | None = None,
    pace: Pace | None = None,
) -> tuple[AtFirst, ...]:  # fmt: skip
    """The heads of the layers that the first position matters most to, the furthest from 0 first; () where no attention is
    causal.

    halves  which half of the text each of `batches` is of, 0 or 1; two are needed, at least one of each
    means   what heads give instead, {path: (h, v)}
    """
    given = as_batches(model, batches)
    with AblationRun(model, given, "mean", metric, positions="first", means=means).open() as run:
        by_path = dict(model.named_modules())
        rows = [row for row, module in enumerate(run.modules) if has_first(by_path[module.path], module.stack)]
        if not rows:
            return ()
        # Half of the windows will do to choose layers.
        together = _added(run, [(row, run.modules[row].numbers) for row in rows], -(-len(given) // 2), pace)
        by_layer = {
            row: abs(together[:, row, run.modules[row].numbers[0]].mean()) for row in rows if run.modules[row].numbers
        }
        most = sorted(by_layer, key=lambda row: -by_layer[row])[:_LAYERS]
        alone = [(row, (number,)) for row in most for number in run.modules[row].numbers]
        found = _added(run, alone, len(given), pace)
        told = [_told(run.modules[row], number, found[:, row, number], halves) for row, (number,) in alone]
    return tuple(sorted(told, key=lambda one: -abs(one.loss)))


def _added(run: AblationRun, jobs: Sequence[Job], count: int, pace: Pace | None) -> np.ndarray:
    """(batches, rows, heads) of what each job adds."""
    pace = pace or Pace(lambda _: None)
    pace.say(f"the first position: {len(jobs)} times on the beginnings of {count} windows")
    return np.stack([run.added(number, jobs)[0].numpy() for number in range(count)])


def _told(module: AttentionModule, number: int, rises: np.ndarray, halves: Sequence[int]) -> AtFirst:
    found = two_phase_estimate(rises[:, None], rises[:, None], range(len(rises)))
    low, high = (float(end[0]) for end in found.interval)
    half = np.array(halves)
    return AtFirst(
        module.head(number), float(rises.mean()), low, high, float(rises[np.abs(rises).argmax()]),
        (float(rises[half == 0].mean()), float(rises[half == 1].mean())),
    )  # fmt: skip
