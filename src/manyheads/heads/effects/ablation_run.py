"""Measuring a model with heads taken away: what one, several or none of them cost on each batch, while the door is open.

with Removing(model, batches, how="mean").open() as run:
    run.added(0, [(row, (head,)) for ...])     # on batch 0, each alone
    run.measure(1, {path: (0, 3)})             # on batch 1, two heads of one module together
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import OneHead, address
from manyheads.heads.attention_modules import AttentionModule, ModuleIndex, head_table, select
from manyheads.heads.batches import Batch
from manyheads.heads.effects.activation_cache import ActivationCache, caching_activations
from manyheads.heads.effects.metrics import Metric, measured
from manyheads.heads.effects.replaced_outputs import (
    METHODS,
    POSITIONS,
    HeadReplacement,
    MeanOutputs,
    RecordedOutputs,
    resampled_outputs,
)
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import open_door
from manyheads.quoting import shown

__all__ = ["AblationRun", "Job", "Removal", "mean_outputs"]

Job = tuple[int, tuple[int, ...]]
"""What is taken away at a time: (row of the modules, heads of it)."""

# How far the metric may move when cached activations stand for the first layers: sums on a GPU may be taken in another order.
_SAME = 1e-5


@dataclass(frozen=True, eq=False)
class Removal:
    """The metric with 0, 1, ... heads taken away together: by_batch (counts, batches), and each batch's share in the mean."""

    counts: tuple[int, ...]
    by_batch: Tensor
    weights: Tensor
    how: str

    @property
    def values(self) -> tuple[float, ...]:
        """The mean over all batches for each count."""
        return tuple((self.by_batch @ self.weights).tolist())


class AblationRun:
    """Measurements of one model on given batches, with heads taken away in one way; `open` it first.

    how        one of METHODS; positions  one of POSITIONS: where a head is taken away
    means      {path: (h, v)} that heads give instead with "mean"; None: their means over these batches, over the positions
               at which they are taken away (with "first": over all)
    reuse      compute what comes before the layer once. It is checked on the first batch that this changes nothing, and left
               out where it does (a layer that reads what an earlier one wrote elsewhere); `reused` is what became of it

    Raises ManyheadsError for a method or positions that are not there.
    """

    def __init__(
        self, model: Any, batches: Sequence[Batch], how: str, metric: Metric | None = None, *, positions: str = "all",
        means: Mapping[str, Tensor] | None = None, reuse: bool = True,
    ) -> None:  # fmt: skip
        if how not in METHODS:
            raise ManyheadsError(f"heads cannot be taken away by {shown(how)}; valid: {', '.join(METHODS)}")
        if positions not in POSITIONS:
            raise ManyheadsError(f"positions={shown(positions)} is not one of {', '.join(map(repr, POSITIONS))}")
        self._model, self._batches, self._how, self._metric = model, batches, how, metric
        self._gate, self._given = HeadReplacement(positions), means
        self._checked = False
        self.reused = reuse
        self.modules: tuple[AttentionModule, ...] = ()

    @contextmanager
    def open(self) -> Iterator[AblationRun]:
        """The door is open, in evaluation mode and without gradients, and the modules are known."""
        found = find_attentions(self._model)
        index = ModuleIndex(found)
        self._gate.stacks = index.stacks
        with torch.no_grad(), open_door(self._model, gates=[self._gate], observers=[index], mode="eval") as door:
            if self._how == "mean" and self._given is None:
                later = self._gate.positions == "later"
                self._gate.instead = mean_outputs(self._model, self._batches, later=later)
            else:
                self._gate.instead = dict(self._given or {})
                self._model(**self._batches[0])
            self.modules = index.called(door)
            yield self

    def measure(self, number: int, gone: Mapping[str, Sequence[int]] | None = None) -> tuple[float, float]:
        """(value, weight) of the metric on batch `number` with the heads `gone` {path: heads} taken away."""
        batch = self._batches[number]
        by_path = {module.path: module for module in self.modules} if gone else {}
        self._gate.batch = batch
        self._gate.take({path: by_path[path].indices(heads) for path, heads in (gone or {}).items()})
        try:
            value, weight = measured(self._model, batch, self._metric)
        finally:
            self._gate.take({})
        return value.item(), weight

    def prepare(self, number: int) -> None:
        """Before heads of batch `number` are taken away: what they give instead, where that differs by batch."""
        if self._how == "resample":
            following = (number + 1) % len(self._batches)
            own, after = self._outputs(number), self._outputs(following)
            if number == following and all(len(out) == 1 for calls in own.kept.values() for out, _ in calls):
                raise ManyheadsError(
                    "resampling needs the outputs of another text, and there is 1; at least 2 are needed"
                )
            self._gate.instead = resampled_outputs(own, after)

    def added(
        self, number: int, jobs: Sequence[Job], *, say: Callable[[int], None] = lambda _: None
    ) -> tuple[Tensor, float, float]:
        """(what the absence of each of `jobs` adds on batch `number` (rows, heads), the metric of the whole, its weight)."""
        added = head_table(self.modules)
        with caching_activations(self._model, [module.path for module in self.modules] if self.reused else []) as cache:
            cache.record()
            whole, weight = self.measure(number)
            if self.reused and not self._checked:
                self.reused, self._checked = self._faithful(cache, number, whole), True
            cache.skip_to(None)
            self.prepare(number)
            # From the last layer to the first: a block that keeps something for later keeps what it had untouched.
            order = sorted(jobs, key=lambda job: (-cache.prefix(self.modules[job[0]].path), job))
            for done, (row, heads) in enumerate(order):
                path = self.modules[row].path
                cache.skip_to(path if self.reused else None)
                changed, _ = self.measure(number, {path: heads})
                added[row, list(heads)] = changed - whole
                say(done + 1)
        return added, whole, weight

    def together(
        self, order: Sequence[OneHead], counts: Sequence[int], *, say: Callable[[int, int], None] = lambda *_: None
    ) -> Removal:
        """The metric with the first n heads of `order` taken away together, for each n of `counts`, on every batch.

        ManyheadsError for a head that does not exist or is named twice, and a count beyond the order.
        """
        asked = [address(head) for head in order]
        if len(set(asked)) != len(asked):
            twice = next(head for head in asked if asked.count(head) > 1)
            raise ManyheadsError(f"head {twice} stands twice in the order of removal; expected each once")
        beyond = [count for count in counts if not 0 <= count <= len(asked)]
        if beyond or not counts:
            many = f"{beyond[0]} heads are" if beyond else "no number of heads is"
            raise ManyheadsError(f"{many} to be removed and the order names {len(asked)}; valid: 0 to {len(asked)}")
        found = torch.zeros((len(counts), len(self._batches)), dtype=torch.float64)
        weights = []
        gone = [self._by_path(asked[:count]) for count in counts]
        for number in range(len(self._batches)):
            self.prepare(number)
            weight = 0.0
            for row, heads in enumerate(gone):
                found[row, number], weight = self.measure(number, heads)
                say(number * len(counts) + row + 1, len(self._batches) * len(counts))
            weights.append(weight)
        shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        return Removal(tuple(counts), found, shares, self._how)

    def _by_path(self, heads: Sequence[OneHead]) -> dict[str, tuple[int, ...]]:
        chosen = select(self.modules, heads) if heads else {}
        return {self.modules[row].path: numbers for row, numbers in chosen.items()}

    def _outputs(self, number: int) -> RecordedOutputs:
        outputs = RecordedOutputs(self._batches[number], self._gate.stacks)
        with open_door(self._model, observers=[outputs]):
            self._model(**self._batches[number])
        return outputs

    def _faithful(self, cache: ActivationCache, number: int, whole: float) -> bool:
        """Whether the network gives the same when it starts at half, three quarters ... and the last of its attentions."""
        paths = sorted((module.path for module in self.modules), key=cache.prefix)
        starts = {len(paths) - 1}
        step = len(paths) // 2
        while step:
            starts.add(len(paths) - step)
            step //= 2
        for start in sorted(starts):
            cache.skip_to(paths[start])
            try:
                again, _ = self.measure(number)
            except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError):
                return False
            if not math.isclose(again, whole, rel_tol=_SAME, abs_tol=_SAME):
                return False
        return True


def mean_outputs(model: Any, batches: Sequence[Batch], *, later: bool = False) -> dict[str, Tensor]:
    """{path: (h, v)}: the mean output of each head over all real positions of `batches`; `later`: without the first positions
    of causal attention."""
    means = MeanOutputs(ModuleIndex(find_attentions(model)).stacks, later=later)
    with torch.no_grad(), open_door(model, observers=[means], mode="eval"):
        for batch in batches:
            means.batch = batch
            model(**batch)
    return means.means()
