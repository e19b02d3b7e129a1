"""Taking heads away for real, one or one group at a time or one after another, and measuring what that costs.

Each head is taken out where heads are still apart, at the input of the output projection, and the rest of the network
runs again; what comes before the layer is the same for all its heads and is computed once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, Heads, OneHead, address, addresses, check_heads
from manyheads.heads.batches import places as stacks
from manyheads.heads.metrics import Batch, Metric, as_batches, measured, metric_of
from manyheads.heads.places import Place, Placing, seen, select, table
from manyheads.heads.replacing import METHODS, Means, Outputs, Replacing, donated
from manyheads.heads.replay import Replay, replaying
from manyheads.heads.scores import Importance
from manyheads.models.door import Call, opened
from manyheads.models.door_attentions import find_attentions

__all__ = ["METHODS", "UNITS", "Removal", "ablation", "removal_curve", "without"]

UNITS = ("head", "group")
"""What is taken away at once: a query head, or all query heads that share a key/value head."""

Say = Callable[[int, int], None]

_Job = tuple[int, tuple[int, ...]]

# How far the metric may move when the prefix is replayed: sums on a GPU may be taken in another order.
_SAME = 1e-5


def ablation(
    model: Any,
    batches: Iterable[Mapping[str, Any] | Tensor | Sequence[int]],
    *,
    how: str = "zero",
    metric: Metric | None = None,
    heads: Heads | None = None,
    unit: Literal["head", "group"] = "head",
    reuse: bool = True,
    say: Say = lambda *_: None,
) -> Importance:
    """What the metric rises by when each of `heads` (None: all) is taken away alone, the others in place.

    unit     "group": all query heads that share a key/value head go at once, those of `heads` with their neighbours; the
             score of the group stands at each of its heads. The same as "head" where every head has keys of its own; where
             a layer has one key/value head, what the layer's attention is worth
    how      what the head gives instead: "zero"; "mean", its mean over all positions that are no padding; "resample", its
             output on the next sequence of `batches`, the first following the last (two are needed)
    reuse    compute what comes before the layer once. It is checked on the first batch that this changes nothing, and
             left out where it does (a layer that reads what an earlier one wrote elsewhere)

    Runs in evaluation mode and without gradients; the model is afterwards as it was. Errors as in `importance`.
    """
    began = time.perf_counter()
    if unit not in UNITS:
        raise ManyheadsError(f"unit={unit!r} is not one of {', '.join(map(repr, UNITS))}")
    given = as_batches(model, batches)
    with _Run(model, given, how, metric).open() as run:
        jobs = _jobs(run.places, heads, unit)
        by_batch, baselines, weights = [], [], []
        reused = reuse
        for number in range(len(given)):
            told = _told(say, number * len(jobs), len(given) * len(jobs))
            added, whole, weight, reused = _one_batch(model, run, number, jobs, reuse=reused, say=told)
            by_batch.append(added)
            baselines.append(whole)
            weights.append(weight)
        share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
        baseline = float(torch.tensor(baselines, dtype=torch.float64) @ share)
        tables = torch.stack(by_batch)
        scores = torch.einsum("nrh,n->rh", tables, share)
        return Importance(
            how, scores, ~torch.isnan(scores), baseline, run.places, tables, share, time.perf_counter() - began,
            reused=reused, unit=unit,
        )  # fmt: skip


def _jobs(places: Sequence[Place], heads: Heads | None, unit: str) -> list[_Job]:
    """What is taken away at a time: (row, its heads)."""
    found: dict[_Job, None] = {}
    for row, numbers in select(places, heads).items():
        for number in numbers:
            found[row, places[row].partners(number) if unit == "group" else (number,)] = None
    return list(found)


def _told(say: Say, done: int, total: int) -> Callable[[int], None]:
    return lambda more: say(done + more, total)


def _one_batch(
    model: Any, run: _Run, number: int, jobs: list[_Job], *, reuse: bool, say: Callable[[int], None]
) -> tuple[Tensor, float, float, bool]:
    """(what each absence adds (rows, heads), the metric of the whole, its weight, whether the prefix was reused)."""
    added = table(run.places)
    with replaying(model, [place.path for place in run.places] if reuse else []) as replay:
        replay.record()
        whole, weight = run.measure(number)
        if reuse and number == 0 and not _faithful(run, replay, whole):
            reuse = False
        replay.skip_to(None)
        run.prepare(number)
        # From the last layer to the first: a block that keeps something for later keeps what it had untouched.
        order = sorted(jobs, key=lambda job: (-replay.prefix(run.places[job[0]].path), job))
        for done, (row, heads) in enumerate(order):
            path = run.places[row].path
            replay.skip_to(path if reuse else None)
            changed, _ = run.measure(number, {path: heads})
            added[row, list(heads)] = changed - whole
            say(done + 1)
    return added, whole, weight, reuse


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


def removal_curve(
    model: Any,
    batches: Iterable[Mapping[str, Any] | Tensor | Sequence[int]],
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
    given, asked = as_batches(model, batches), [address(head) for head in order]
    if len(set(asked)) != len(asked):
        twice = next(head for head in asked if asked.count(head) > 1)
        raise ManyheadsError(f"head {twice} stands twice in the order of removal; expected each once")
    beyond = [count for count in counts if not 0 <= count <= len(order)]
    if beyond or not counts:
        many = f"{beyond[0]} heads are" if beyond else "no number of heads is"
        raise ManyheadsError(f"{many} to be removed and the order names {len(order)}; valid: 0 to {len(order)}")
    found = torch.zeros((len(counts), len(given)), dtype=torch.float64)
    weights = []
    with _Run(model, given, how, metric).open() as run:
        gone = [_by_path(run.places, asked[:count]) for count in counts]
        for number in range(len(given)):
            run.prepare(number)
            weight = 0.0
            for row, heads in enumerate(gone):
                found[row, number], weight = run.measure(number, heads)
                say(number * len(counts) + row + 1, len(given) * len(counts))
            weights.append(weight)
    shares = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    return Removal(tuple(counts), found, shares, how)


@contextmanager
def without(model: Any, heads: Heads, *, instead: Mapping[str, Tensor] | None = None) -> Iterator[None]:
    """The model as if `heads` gave nothing, or `instead` {path: means (h, v)}, while the context is open.

    The same as zeroing their columns of the output projection. ManyheadsError for a layer that does not exist, and at the
    first forward for a head that does not.
    """
    gate = _Masked(model, heads)
    gate.instead = dict(instead or {})
    with opened(model, gates=[gate]):
        yield


class _Masked(Replacing):
    """Heads known by their addresses; how many a layer has is seen when it is called."""

    def __init__(self, model: Any, heads: Heads) -> None:
        super().__init__()
        self._asked: dict[tuple[str, int], list[int]] = {}
        for head in addresses(heads):
            self._asked.setdefault((head.stage, head.layer), []).append(head.head)
        self._places = {place.path: place for place in stacks(find_attentions(model))}
        there = {(place.stage, place.layer) for place in self._places.values()}
        missing = next((place for place in self._asked if place not in there), None)
        if missing is not None:
            names = ", ".join(f"{stage}/{layer}" if stage else str(layer) for stage, layer in sorted(there))
            raise ManyheadsError(
                f"there is no layer {missing[1]}{f' of the stage {missing[0]}' if missing[0] else ''}; layers with "
                f"attention: {names}"
            )

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        place = seen(self._places[call.path], out.shape[1], call.k.shape[1])
        mine = self._asked.get((place.stage, place.layer), [])
        check_heads({place.layer: mine} if mine else {}, [place.columns] * (place.layer + 1), stage=place.stage)
        self.gone = {call.path: place.slots(number for number in mine if number in place.numbers)}
        return super().__call__(call, out)


class _Run:
    """Measurements of one model on given batches, with heads taken away in one way."""

    def __init__(self, model: Any, batches: list[Batch], how: str, metric: Metric | None) -> None:
        if how not in METHODS:
            raise ManyheadsError(f"heads cannot be taken away by {how!r}; valid: {', '.join(METHODS)}")
        self._model, self._batches, self._how, self._metric = model, batches, how, metric
        self._gate = Replacing()
        self._stages: dict[str, str] = {}
        self.places: tuple[Place, ...] = ()

    @contextmanager
    def open(self) -> Iterator[_Run]:
        """The door is open, in evaluation mode and without gradients, and the places of the heads are known."""
        found = find_attentions(self._model)
        placing = Placing(found)
        self._stages = {place.path: place.stage for place in stacks(found)}
        with torch.no_grad(), opened(self._model, gates=[self._gate], observers=[placing], mode="eval") as door:
            if self._how == "mean":
                self._gate.instead = self._means()
            else:
                self._model(**self._batches[0])
            self.places = placing.places(door)
            yield self

    def measure(self, number: int, gone: Mapping[str, Sequence[int]] | None = None) -> tuple[float, float]:
        """(value, weight) of the metric on batch `number` with the heads `gone` {path: heads} taken away."""
        batch = self._batches[number]
        by_path = {place.path: place for place in self.places} if gone else {}
        self._gate.take({path: by_path[path].slots(heads) for path, heads in (gone or {}).items()})
        try:
            value, weight = measured(self._model, batch, metric_of(self._model, batch, self._metric))
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
            self._gate.instead = donated(own, after)

    def _outputs(self, number: int) -> Outputs:
        outputs = Outputs(self._batches[number], self._stages)
        with opened(self._model, observers=[outputs]):
            self._model(**self._batches[number])
        return outputs

    def _means(self) -> dict[str, Tensor]:
        means = Means(self._stages)
        with opened(self._model, observers=[means]):
            for batch in self._batches:
                means.batch = batch
                self._model(**batch)
        return means.means()


def _by_path(places: Sequence[Place], heads: Sequence[Head]) -> dict[str, tuple[int, ...]]:
    chosen = select(places, heads) if heads else {}
    return {places[row].path: numbers for row, numbers in chosen.items()}


def _faithful(run: _Run, replay: Replay, whole: float) -> bool:
    """Whether the network gives the same when it starts at half, three quarters ... and the last of its attentions."""
    paths = sorted((place.path for place in run.places), key=replay.prefix)
    starts = {len(paths) - 1}
    step = len(paths) // 2
    while step:
        starts.add(len(paths) - step)
        step //= 2
    for start in sorted(starts):
        replay.skip_to(paths[start])
        try:
            again, _ = run.measure(0)
        except (KeyError, IndexError, TypeError, AttributeError, RuntimeError, ValueError):
            return False
        if not math.isclose(again, whole, rel_tol=_SAME, abs_tol=_SAME):
            return False
    return True
