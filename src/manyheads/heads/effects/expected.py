"""What taking each head out is expected to cost, to first order and for all heads in one backward pass a batch.

The slope is taken towards what the head would give instead, its mean m: <m - out, dL/dout>, summed over the positions at which
it would be taken out. It has a sign, and misses what is curved; measured against exact ablation it takes most of what differs
between texts away (`heads.effects.confident`). Michel's slope, of a factor on the head's output, comes with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.batches import places as stacks
from manyheads.heads.effects.importance import asking, backward, frozen
from manyheads.heads.effects.metrics import Batch, Metric, measured, metric_of
from manyheads.heads.effects.replacing import Means, first_positions
from manyheads.heads.modules import Place, Placing, table
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, opened

__all__ = ["Expected", "expected_changes"]


@dataclass(frozen=True, eq=False)
class Expected:
    """First-order estimates of every head, by batch.

    rises      (batches, rows, heads): what the metric is expected to rise by when the head gives its mean, everywhere but at the
               first real position of causal attention; NaN where there is no such head
    slopes     (batches, rows, heads): |dL/dg| of a factor g on the whole of the head's output, a mean over sequences
    baselines  (batches,): the metric of the whole
    means      {path: (h, v)}: the means that heads would give, over all these batches
    """

    places: tuple[Place, ...]
    rises: Tensor
    slopes: Tensor
    baselines: Tensor
    means: Mapping[str, Tensor]
    seconds: float


class _Nudged:
    """A gate that lets each head's output depend on three things whose gradients are asked for: a factor of 1, a factor of
    one more at the first position, and what is added everywhere else."""

    def __init__(self, stages: Mapping[str, str]) -> None:
        self.batch: Batch = {}
        self.made: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._stages = stages

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        wide = out.dtype if out.dtype == torch.float64 else torch.float32
        if call.path not in self.made:  # a module that is called again, or recomputed, has the same ones
            (b, h, _, v), options = out.shape, {"dtype": wide, "device": out.device, "requires_grad": True}
            self.made[call.path] = (
                torch.ones((b, h), **options), torch.zeros((b, h), **options), torch.zeros((b, h, v), **options)
            )  # fmt: skip
        factor, at_first, added = self.made[call.path]
        first = first_positions(self.batch, call, self._stages[call.path])
        own = out.to(wide)
        if first is None:
            nudged = own * factor[:, :, None, None] + added[:, :, None]
        else:
            where = first[:, None, :, None]
            nudged = own * factor[:, :, None, None]
            nudged = nudged + torch.where(where, own * at_first[:, :, None, None], added[:, :, None])
        return nudged.to(out.dtype)


def expected_changes(
    model: Any, batches: Sequence[Batch], *, metric: Metric | None = None, say: Callable[[int, int], None] = lambda *_: None
) -> Expected:  # fmt: skip
    """The first-order estimates of all heads on each of `batches`, in evaluation mode.

    Weights may be frozen; the model is afterwards as it was. Raises ManyheadsError where no gradient can be had.
    """
    began, found = time.perf_counter(), find_attentions(model)
    stages = {place.path: place.stage for place in stacks(found)}
    nudged, means, placing = _Nudged(stages), Means(stages, later=True), Placing(found)
    parts: list[dict[str, tuple[Tensor, ...]]] = []
    values = []
    with frozen(model), asking(model), opened(model, gates=[nudged], observers=[means, placing], mode="eval") as door:
        for number, batch in enumerate(batches):
            nudged.batch = means.batch = batch
            value, _ = measured(model, batch, metric_of(model, batch, metric))
            parts.append(_gradients(model, value, nudged))
            nudged.made = {}
            values.append(value.item())
            say(number + 1, len(batches))
        places = placing.places(door)
    given = {path: mean.double().cpu() for path, mean in means.means().items()}
    return Expected(
        places, torch.stack([_rises(places, part, given) for part in parts]),
        torch.stack([_filled(places, {path: slope.abs().sum(0) for path, (slope, _, _) in part.items()}) for part in parts]),
        torch.tensor(values, dtype=torch.float64), given, time.perf_counter() - began,
    )  # fmt: skip


def _gradients(model: Any, value: Tensor, nudged: _Nudged) -> dict[str, tuple[Tensor, ...]]:
    """By path, the gradients of what the gate made, on the CPU."""
    if not value.requires_grad:
        raise ManyheadsError(
            "the metric does not pass gradients back to the heads, so nothing is expected to first order"
        )
    backward(model, value, [one for each in nudged.made.values() for one in each])
    return {
        path: tuple((torch.zeros_like(one) if one.grad is None else one.grad).double().cpu() for one in each)
        for path, each in nudged.made.items()
    }


def _rises(places: Sequence[Place], part: Mapping[str, tuple[Tensor, ...]], means: Mapping[str, Tensor]) -> Tensor:
    """<mean - out, dL/dout> over all positions but the first."""
    return _filled(
        places,
        {
            path: (torch.einsum("hv,bhv->bh", means[path], added) - (whole - first)).sum(0)
            for path, (whole, first, added) in part.items()
        },
    )


def _filled(places: Sequence[Place], values: Mapping[str, Tensor]) -> Tensor:
    """(rows, heads) of a value a head, 0 for a module that a batch did not call."""
    filled = table(places)
    for row, place in enumerate(places):
        numbers = list(place.numbers)
        filled[row, numbers] = values[place.path][place.slots(numbers)] if place.path in values else 0.0
    return filled
