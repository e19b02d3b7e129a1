"""Taking heads away for real, one or one group at a time or one after another, and measuring what that costs.

Each head is taken out where heads are still apart, at the input of the output projection, and the rest of the network
runs again; what comes before the layer is the same for all its heads and is computed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Heads, OneHead, addresses, check_heads
from manyheads.heads.attention_modules import AttentionModule, ModuleIndex, select
from manyheads.heads.batches import BatchLike, as_batches
from manyheads.heads.effects.ablation_run import AblationRun, Job, Removal
from manyheads.heads.effects.importance_scores import Importance
from manyheads.heads.effects.metrics import Metric
from manyheads.heads.effects.replaced_outputs import METHODS, HeadReplacement
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, open_door
from manyheads.quoting import shown

__all__ = ["METHODS", "UNITS", "Removal", "ablate_heads", "ablated", "removal_curve"]

UNITS = ("head", "group")
"""What is taken away at once: a query head, or all query heads that share a key/value head."""

Say = Callable[[int, int], None]


def ablate_heads(
    model: Any,
    batches: Iterable[BatchLike],
    *,
    how: str = "zero",
    metric: Metric | None = None,
    heads: Heads | None = None,
    unit: Literal["head", "group"] = "head",
    positions: Literal["all", "later", "first"] = "all",
    means: Mapping[str, Tensor] | None = None,
    reuse: bool = True,
    say: Say = lambda *_: None,
) -> Importance:
    """What the metric rises by when each of `heads` (None: all) is taken away alone, the others in place.

    unit     "group": all query heads that share a key/value head go at once, those of `heads` with their neighbours; the
             score of the group stands at each of its heads. The same as "head" where every head has keys of its own; where
             a layer has one key/value head, what the layer's attention is worth
    how      what the head gives instead: "zero"; "mean", its mean over all positions that are no padding; "resample", its
             output on the next sequence of `batches`, the first following the last (two are needed)
    positions  where: "all"; "later", all but the first real position of a sequence, which causal models use as a sink; "first",
             that alone (`heads.effects.replaced_outputs.POSITIONS`)
    means    {path: (h, v)} for "mean", where it shall not be that of these batches
    reuse    compute what comes before the layer once. It is checked on the first batch that this changes nothing, and
             left out where it does (a layer that reads what an earlier one wrote elsewhere)

    Runs in evaluation mode and without gradients; the model is afterwards as it was. Errors as in `importance`.
    """
    began = time.perf_counter()
    if unit not in UNITS:
        raise ManyheadsError(f"unit={shown(unit)} is not one of {', '.join(map(repr, UNITS))}")
    given = as_batches(model, batches)
    with AblationRun(model, given, how, metric, positions=positions, means=means, reuse=reuse).open() as run:
        jobs = _jobs(run.modules, heads, unit)
        by_batch, baselines, weights = [], [], []
        for number in range(len(given)):
            told = _told(say, number * len(jobs), len(given) * len(jobs))
            added, whole, weight = run.added(number, jobs, say=told)
            by_batch.append(added)
            baselines.append(whole)
            weights.append(weight)
        share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        baseline = float(torch.tensor(baselines, dtype=torch.float64) @ share)
        tables = torch.stack(by_batch)
        scores = torch.einsum("nrh,n->rh", tables, share)
        return Importance(
            how, scores, ~torch.isnan(scores), baseline, run.modules, tables, share, time.perf_counter() - began,
            reused=run.reused, unit=unit,
        )  # fmt: skip


def _jobs(modules: Sequence[AttentionModule], heads: Heads | None, unit: str) -> list[Job]:
    """What is taken away at a time: (row, its heads)."""
    found: dict[Job, None] = {}
    for row, numbers in select(modules, heads).items():
        for number in numbers:
            found[row, modules[row].group_of(number) if unit == "group" else (number,)] = None
    return list(found)


def _told(say: Say, done: int, total: int) -> Callable[[int], None]:
    return lambda more: say(done + more, total)


def removal_curve(
    model: Any,
    batches: Iterable[BatchLike],
    order: Sequence[OneHead],
    *,
    counts: Sequence[int],
    how: str = "zero",
    metric: Metric | None = None,
    say: Say = lambda *_: None,
) -> Removal:
    """The metric with the first n heads of `order` taken away together, for each n of `counts`.

    `how` as in `ablation`. ManyheadsError for a head that does not exist or is named twice, and a count beyond the order.
    """
    with AblationRun(model, as_batches(model, batches), how, metric).open() as run:
        return run.together(order, counts, say=say)


@contextmanager
def ablated(model: Any, heads: Heads, *, instead: Mapping[str, Tensor] | None = None) -> Iterator[None]:
    """The model as if `heads` gave nothing, or `instead` {path: means (h, v)}, while the context is open.

    The same as zeroing their columns of the output projection. ManyheadsError for a layer that does not exist, and at the
    first forward for a head that does not.
    """
    gate = _Masked(model, heads)
    gate.instead = dict(instead or {})
    with open_door(model, gates=[gate]):
        yield


class _Masked(HeadReplacement):
    """Heads known by their addresses; how many a layer has is seen when it is called."""

    def __init__(self, model: Any, heads: Heads) -> None:
        super().__init__()
        self._asked: dict[tuple[str, int], list[int]] = {}
        for head in addresses(heads):
            self._asked.setdefault((head.stack, head.layer), []).append(head.head)
        self._modules = ModuleIndex(find_attentions(model))
        there = self._modules.layers
        missing = next((layer for layer in self._asked if layer not in there), None)
        if missing is not None:
            names = ", ".join(f"{stack}/{layer}" if stack else str(layer) for stack, layer in sorted(there))
            raise ManyheadsError(
                f"there is no layer {missing[1]}{f' of the stack {missing[0]}' if missing[0] else ''}; layers with "
                f"attention: {names}"
            )

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        module = self._modules.of(call)
        mine = self._asked.get((module.stack, module.layer), [])
        check_heads({module.layer: mine} if mine else {}, [module.columns] * (module.layer + 1), stack=module.stack)
        self.gone = {call.path: module.indices(number for number in mine if number in module.numbers)}
        return super().__call__(call, out)
