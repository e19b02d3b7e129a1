"""What taking each head out is expected to cost, to first order and for all heads in one backward pass a batch.

The slope is taken towards what the head would give instead, its mean m: <m - out, dL/dout>, summed over the positions at which
it would be taken out. It has a sign, and misses what is curved; measured against exact ablation it takes most of what differs
between texts away (`heads.effects.budgeted_ablation`). Michel's slope, of a factor on the head's output, comes with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.attention_modules import AttentionModule, ModuleIndex, head_table
from manyheads.heads.batches import Batch
from manyheads.heads.effects.importance import asking, backward, frozen
from manyheads.heads.effects.metrics import Metric, measured
from manyheads.heads.effects.replaced_outputs import MeanOutputs, first_positions
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, open_door

__all__ = ["FirstOrder", "first_order_effects"]


@dataclass(frozen=True, eq=False)
class FirstOrder:
    """First-order estimates of every head, by batch.

    rises      (batches, rows, heads): what the metric is expected to rise by when the head gives its mean, everywhere but at the
               first real position of causal attention; NaN where there is no such head
    slopes     (batches, rows, heads): |dL/dg| of a factor g on the whole of the head's output, a mean over sequences
    baselines  (batches,): the metric of the whole
    means      {path: (h, v)}: the means that heads would give, over all these batches
    """

    modules: tuple[AttentionModule, ...]
    rises: Tensor
    slopes: Tensor
    baselines: Tensor
    means: Mapping[str, Tensor]
    seconds: float


class _Nudged:
    """A gate that lets each head's output depend on three things whose gradients are asked for: a factor of 1, a factor of
    one more at the first position, and what is added everywhere else."""

    def __init__(self, stacks: Mapping[str, str]) -> None:
        self.batch: Batch = {}
        self.made: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
        self._stacks = stacks

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        wide = out.dtype if out.dtype == torch.float64 else torch.float32
        if call.path not in self.made:  # a module that is called again, or recomputed, has the same ones
            (b, h, _, v), options = out.shape, {"dtype": wide, "device": out.device, "requires_grad": True}
            self.made[call.path] = (
                torch.ones((b, h), **options), torch.zeros((b, h), **options), torch.zeros((b, h, v), **options)
            )  # fmt: skip
        factor, at_first, added = self.made[call.path]
        first = first_positions(self.batch, call, self._stacks[call.path])
        own = out.to(wide)
        if first is None:
            nudged = own * factor[:, :, None, None] + added[:, :, None]
        else:
            where = first[:, None, :, None]
            nudged = own * factor[:, :, None, None]
            nudged = nudged + torch.where(where, own * at_first[:, :, None, None], added[:, :, None])
        return nudged.to(out.dtype)


def first_order_effects(
    model: Any, batches: Sequence[Batch], *, metric: Metric | None = None, say: Callable[[int, int], None] = lambda *_: None
) -> FirstOrder:  # fmt: skip
    """The first-order estimates of all heads on each of `batches`, in evaluation mode.

    Weights may be frozen; the model is afterwards as it was. Raises ManyheadsError where no gradient can be had.
    """
    began, found = time.perf_counter(), find_attentions(model)
    index = ModuleIndex(found)
    nudged, means = _Nudged(index.stacks), MeanOutputs(index.stacks, later=True)
    parts: list[dict[str, tuple[Tensor, ...]]] = []
    values = []
    with frozen(model), asking(model), open_door(model, gates=[nudged], observers=[means, index], mode="eval") as door:
        for number, batch in enumerate(batches):
            nudged.batch = means.batch = batch
            value, _ = measured(model, batch, metric)
            parts.append(_gradients(model, value, nudged))
            nudged.made = {}
            values.append(value.item())
            say(number + 1, len(batches))
        modules = index.called(door)
    given = {path: mean.double().cpu() for path, mean in means.means().items()}
    return FirstOrder(
        modules, torch.stack([_rises(modules, part, given) for part in parts]),
        torch.stack([head_table(modules, {path: slope.abs().sum(0) for path, (slope, _, _) in part.items()}) for part in parts]),
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


def _rises(
    modules: Sequence[AttentionModule], part: Mapping[str, tuple[Tensor, ...]], means: Mapping[str, Tensor]
) -> Tensor:
    """<mean - out, dL/dout> over all positions but the first."""
    return head_table(
        modules,
        {
            path: (torch.einsum("hv,bhv->bh", means[path], added) - (whole - first)).sum(0)
            for path, (whole, first, added) in part.items()
        },
    )
