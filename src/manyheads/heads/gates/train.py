"""Gates that learn which heads a model can do without, all at once.

    gates = train_gates(model, batches, penalty=0.01, steps=300)
    gates.closed(), gates.convergence.text, gates.loss_without

Each head (or each group that shares keys and values) has a gate that is drawn anew for every sequence (`hard_concrete`);
what is made small is

    metric + penalty · expected number of open heads                (Voita et al., arXiv 1905.09418, section 6.1)

so that a head stays where it is worth more than `penalty` to the metric. The weights stay as they are unless a rate is
given for them too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.attention_modules import AttentionModule, ModuleIndex, head_table
from manyheads.heads.batches import Batch, BatchLike, as_batches
from manyheads.heads.effects import Importance, Metric, asking, frozen, measured
from manyheads.heads.gates.hard_concrete import drawn, likely, open_probability
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, open_door
from manyheads.quoting import shown

__all__ = ["QUADRANTS", "Convergence", "Gates", "gated", "quadrants", "train_gates"]

Per = Literal["head", "group"]
Say = Callable[[int, int], None]

_START = 2.0  # open with probability 0.97, and still moved by gradients
_UNDECIDED = (0.1, 0.9)  # probabilities of being open between which a gate has not made up its mind
_SHUT = -math.log(11)  # where a gate without noise is 0
_STEPS = 300
_LEAST_STEPS = 8  # to speak of a last quarter and the one before

QUADRANTS = ("needed and kept", "kept", "needed", "neither")


@dataclass(frozen=True)
class Convergence:
    """Whether training had come to rest: `undecided` gates are open with a probability between 0.1 and 0.9; `drift` is
    how much the mean number of open heads in the last quarter of the steps differs from that in the quarter before; `more`:
    how many steps more are worth trying where it had not, "" where it had."""

    converged: bool
    undecided: int
    gates: int
    drift: float
    text: str
    more: str = ""


@dataclass(frozen=True, eq=False)
class Gates:
    """Trained gates.

    a             the trained numbers, (rows, heads), NaN where there is no head; row i belongs to `modules[i]`
    values        the gates without noise, (rows, heads): 0 is closed
    open          (rows, heads): the probability of being open
    per           "head", or "group": all query heads that share a key/value head have one gate
    penalty       what an open head costs
    baseline      the metric of the whole model; `loss_with` that with the gates at `values`; `loss_without` that with the
                  closed heads taken away and all others left whole. On the texts of the training: judge them on others
    losses        the metric of each step, with gates drawn; `expected` the expected number of open heads of each step
    convergence   whether the training had come to rest
    """

    a: Tensor
    values: Tensor
    open: Tensor
    modules: tuple[AttentionModule, ...]
    per: Per
    penalty: float
    baseline: float
    loss_with: float
    loss_without: float
    losses: tuple[float, ...]
    expected: tuple[float, ...]
    convergence: Convergence
    seconds: float

    def __repr__(self) -> str:
        closed, kept = len(self.closed()), len(self.kept())
        return (
            f"Gates({closed} of {closed + kept} heads closed at a penalty of {self.penalty:g} a head, "
            f"{'' if self.convergence.converged else 'not '}converged; metric {self.baseline:.4f} -> {self.loss_without:.4f} "
            f"without them; {self.seconds:.1f} s)"
        )

    def closed(self) -> tuple[Head, ...]:
        """The heads whose gate is 0."""
        return self._where(self.values == 0)

    def kept(self) -> tuple[Head, ...]:
        """The heads whose gate is not 0."""
        return self._where(self.values > 0)

    def _where(self, mask: Tensor) -> tuple[Head, ...]:
        return tuple(self.modules[row].head(head) for row, head in mask.nonzero().tolist())


def train_gates(
    model: Any,
    batches: Iterable[BatchLike],
    *,
    penalty: float,
    steps: int = _STEPS,
    rate: float = 0.1,
    weight_rate: float = 0.0,
    per: Per = "head",
    metric: Metric | None = None,
    seed: int = 0,
    say: Say = lambda *_: None,
) -> Gates:
    """Train one gate a head (or KV group) of a model of transformers on `batches`, which are gone through again and again.

    penalty      what an open head costs, in units of the metric; higher closes more
    rate         of Adam for the gates; `weight_rate` for the parameters that ask for gradients, 0: the model is frozen
    per          "group" closes the query heads of a key/value head together, so that it can be removed with them
    metric       as in `importance`; differentiable
    say          told (steps done, steps to do)

    A frozen model is in evaluation mode meanwhile, one that is trained in training mode. Afterwards modes, requires_grad,
    gradients and configurations are as they were; weights that were trained stay so, but are put back after an error.
    ManyheadsError for penalties, steps and rates that make no sense, and under torch.no_grad().
    """
    began = time.perf_counter()
    given = as_batches(model, batches)
    _check(model, penalty=penalty, steps=steps, rate=rate, weight_rate=weight_rate, per=per)
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad] if weight_rate else []
    drawing = _Drawing(per, seed)
    with _held(model, weights), open_door(model, mode="train" if weight_rate else "eval"):
        modules, baseline = _whole(model, given, metric)
        drawing.start(modules)
        losses, expected = _descend(model, given, metric, drawing, weights, (steps, penalty, rate, weight_rate), say)
        a = drawing.table(modules)
        values = likely(a)
        loss_with = _mean_loss(model, given, metric, _Fixed(modules, values))
        loss_without = _mean_loss(model, given, metric, _Fixed(modules, (values > 0).to(values.dtype)))
    return Gates(
        a, values, open_probability(a), modules, per, penalty, baseline, loss_with, loss_without, tuple(losses),
        tuple(expected), _convergence(drawing, expected, rate), time.perf_counter() - began,
    )  # fmt: skip


def _check(model: Any, *, penalty: float, steps: int, rate: float, weight_rate: float, per: str) -> None:
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise ManyheadsError("gates are trained by gradients and were called under torch.no_grad() or inference_mode()")
    if not 0 <= penalty < math.inf or not 0 < rate < math.inf or not 0 <= weight_rate < math.inf:
        raise ManyheadsError(
            f"penalty {penalty}, rate {rate}, weight_rate {weight_rate}: expected finite numbers, penalty and weight_rate of at "
            "least 0 and a rate above it"
        )
    if steps != int(steps) or steps < _LEAST_STEPS:
        raise ManyheadsError(
            f"steps {steps}: a whole number of at least {_LEAST_STEPS} is needed to tell whether gates have come to rest"
        )
    if per not in ("head", "group"):
        raise ManyheadsError(f"per={shown(per)} is not one of 'head', 'group'")
    if weight_rate and not any(parameter.requires_grad for parameter in model.parameters()):
        raise ManyheadsError(
            f"weight_rate is {weight_rate} and no parameter of the model asks for a gradient; set requires_grad on those "
            "that are to be trained, or weight_rate=0"
        )


class _Drawing:
    """A gate that multiplies each head of each sequence by a draw of its own; the same one when a layer is recomputed."""

    def __init__(self, per: Per, seed: int) -> None:
        self._per, self._random = per, torch.Generator().manual_seed(seed)
        self._sizes: dict[str, int] = {}
        self._draws: dict[str, Tensor] = {}
        self.a: dict[str, Tensor] = {}
        self.works: dict[str, Tensor] = {}  # the heads behind each gate, without those that were removed before

    def start(self, modules: Sequence[AttentionModule]) -> None:
        """One number for each head or group of these modules."""
        for module in modules:
            kv_heads = module.kv_heads if module.heads % module.kv_heads == 0 else module.heads
            count = kv_heads if self._per == "group" else module.heads
            self.a[module.path] = torch.full((count,), _START, requires_grad=True)
            self._sizes[module.path] = module.heads // count
            works = torch.zeros(module.heads)
            works[module.indices(module.numbers)] = 1
            self.works[module.path] = works.view(count, -1).sum(1)

    def renew(self) -> None:
        """The next forward draws anew."""
        self._draws = {}

    def expected(self) -> Tensor:
        """The expected number of open heads."""
        return torch.stack([(open_probability(a) * self.works[path]).sum() for path, a in self.a.items()]).sum()

    def table(self, modules: Sequence[AttentionModule]) -> Tensor:
        """The numbers of all heads, (rows, heads), NaN where there is none."""
        return head_table(modules, {path: self._wide(path, a.detach()) for path, a in self.a.items()})

    def _wide(self, path: str, values: Tensor) -> Tensor:
        """A value a group as one a query head: consecutive query heads share a key/value head."""
        return values.repeat_interleave(self._sizes[path], dim=-1)

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        a, uniform = self.a[call.path], self._draws.get(call.path)
        if uniform is None:
            uniform = self._draws[call.path] = torch.rand((out.shape[0], len(a)), generator=self._random)
        # Only the numbers are kept: what is computed from `a` belongs to the graph that a recomputation makes anew.
        z = self._wide(call.path, drawn(a, uniform)).to(out.device)
        wide = out.dtype if out.dtype == torch.float64 else torch.float32
        return (out.to(wide) * z[:, :, None, None].to(wide)).to(out.dtype)


class _Fixed:
    """A gate that multiplies the heads by given values (rows, heads)."""

    def __init__(self, modules: Sequence[AttentionModule], values: Tensor) -> None:
        self._values: dict[str, Tensor] = {}
        for row, module in enumerate(modules):
            self._values[module.path] = torch.ones(module.heads, dtype=values.dtype)
            self._values[module.path][module.indices(module.numbers)] = values[row, list(module.numbers)]

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        values = self._values.get(call.path)
        if values is None:  # it did not run when the gates were trained, so it has none
            return out
        if len(values) != out.shape[1]:
            raise ManyheadsError(f"{call.path} has {out.shape[1]} heads, and its gates are of {len(values)}")
        return out * values.to(out)[:, None, None]


@contextmanager
def gated(model: Any, gates: Gates, *, hard: bool = True) -> Iterator[None]:
    """The model with the closed heads giving nothing; the others whole, or where not `hard` times the value of their gate.

    Raises ManyheadsError for gates of another model.
    """
    known = set(find_attentions(model).paths.values())
    strange = [module.path for module in gates.modules if module.path not in known]
    if strange:
        raise ManyheadsError(f"the gates are of another model: {type(model).__name__} has no attention {strange[0]}")
    values = (gates.values > 0).to(gates.values.dtype) if hard else gates.values
    with open_door(model, gates=[_Fixed(gates.modules, values)]):
        yield


def _whole(model: Any, batches: list[Batch], metric: Metric | None) -> tuple[tuple[AttentionModule, ...], float]:
    index = ModuleIndex(find_attentions(model))
    with open_door(model, observers=[index]) as door:
        baseline = _mean_loss(model, batches, metric, None)
        return index.called(door), baseline


def _mean_loss(
    model: Any, batches: list[Batch], metric: Metric | None, gate: Callable[[Call, Tensor], Tensor] | None
) -> float:
    found = []
    with torch.no_grad(), open_door(model, gates=[gate] if gate else [], mode="eval"):
        for batch in batches:
            value, weight = measured(model, batch, metric)
            found.append((value.item(), weight))
    return sum(value * weight for value, weight in found) / sum(weight for _, weight in found)


def _descend(
    model: Any, batches: list[Batch], metric: Metric | None, drawing: _Drawing, weights: list[Tensor],
    settings: tuple[int, float, float, float], say: Say,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """The loop: the metric and the expected number of open heads of each step."""
    steps, penalty, rate, weight_rate = settings
    optimisers = [torch.optim.Adam(list(drawing.a.values()), lr=rate)]
    if weights:
        optimisers.append(torch.optim.Adam(weights, lr=weight_rate))
    losses, expected = [], []
    with open_door(model, gates=[drawing]):
        for step in range(steps):
            drawing.renew()
            batch = batches[step % len(batches)]
            value, _ = measured(model, batch, metric)
            if not value.requires_grad:
                raise ManyheadsError("the metric does not pass gradients back to the heads (a count, an argmax?)")
            opened_heads = drawing.expected()
            for optimiser in optimisers:
                optimiser.zero_grad()
            (value + penalty * opened_heads.to(value)).backward()
            for optimiser in optimisers:
                optimiser.step()
            losses.append(value.item())
            expected.append(opened_heads.item())
            say(step + 1, steps)
    return losses, expected


@contextmanager
def _held(model: Any, weights: list[Tensor]) -> Iterator[None]:
    """Gradients are put back as they were; without `weights` the model is frozen, with them it is put back on an error."""
    gradients = [(parameter, parameter.grad) for parameter in weights]
    before = [parameter.detach().clone() for parameter in weights]
    try:
        with asking(model) if weights else frozen(model):
            yield
    except BaseException:
        with torch.no_grad():
            for parameter, value in zip(weights, before, strict=True):
                parameter.copy_(value)
        raise
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _convergence(drawing: _Drawing, expected: Sequence[float], rate: float) -> Convergence:
    probabilities = open_probability(torch.cat([a.detach()[drawing.works[path] > 0] for path, a in drawing.a.items()]))
    low, high = _UNDECIDED
    undecided, gates = int(((probabilities > low) & (probabilities < high)).sum()), len(probabilities)
    steps, quarter = len(expected), len(expected) // 4
    last, before = expected[-quarter:], expected[-2 * quarter : -quarter]
    drift = sum(last) / quarter - sum(before) / quarter
    heads = int(sum(works.sum() for works in drawing.works.values()))
    most_undecided, most_drift = gates // 50, 0.01 * heads
    # Adam moves a number by about its rate a step: half the way to closed.
    least = math.ceil((_START - _SHUT) / (2 * rate))
    converged = steps >= least and undecided <= most_undecided and abs(drift) <= most_drift
    text = (
        f"{undecided} of {gates} gates undecided (open with probability {low} to {high}; at most {most_undecided} expected), "
        f"{drift:+.2f} open heads from the third quarter to the last (at most {most_drift:.2f} either way expected)"
    )
    if steps < least:
        text += f", {steps} steps at a rate of {rate:g} move a gate less than half the way to closed (at least {least} expected)"
    if converged:
        return Convergence(converged, undecided, gates, drift, f"converged: {text}")
    wanted = max(_STEPS, 2 * steps, 4 * least)
    more = (
        f"training had not come to rest after {steps} steps ({undecided} of {gates} gates undecided, {drift:+.2f} open heads "
        f"from the third quarter to the last); try {wanted - steps} steps more: steps={wanted}"
    )
    return Convergence(converged, undecided, gates, drift, f"not converged: {text}", more)


def quadrants(gates: Gates, ablated: Importance, *, tolerance: float | None = None) -> dict[Head, str]:
    """Which of `QUADRANTS` each head is in.

    kept     its gate is open: it belongs to the set that is sufficient together, at the price of the gates
    needed   taking it alone from the whole model raises the metric by more than `tolerance` (None: the penalty of the gates)

    "kept" alone is a head whose work others can take over one at a time, not all together; "needed" alone is one that the
    whole model leans on and the smaller one does without. ManyheadsError where `ablated` is no exact ablation of this model.
    """
    if ablated.modules != gates.modules:
        raise ManyheadsError("the gates and the ablation are of two different models")
    if not bool((ablated.exact == ~torch.isnan(gates.values)).all()):
        raise ManyheadsError(
            f"{int(ablated.exact.sum())} heads were really taken away and {int((~torch.isnan(gates.values)).sum())} have gates; "
            "needed heads are told by exact ablation of all (method='zero', 'mean' or 'resample')"
        )
    least = gates.penalty if tolerance is None else tolerance
    names = {
        (True, True): QUADRANTS[0],
        (True, False): QUADRANTS[1],
        (False, True): QUADRANTS[2],
        (False, False): QUADRANTS[3],
    }
    kept = set(gates.kept())
    return {head: names[head in kept, ablated.score(head) > least] for head in ablated.heads()}
