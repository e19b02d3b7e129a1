"""The layer fit: gradients inside one attention, on what the original model gives it. No labels, no pass through the model.

    loss = |y' - y|^2 / |y|^2 + c · KL(A || A')

first for queries and keys alone, under the old values; then shared values in closed form under the attention that came of
it; then for all four matrices. The attention module itself computes y' and A', so whatever stands in it (QK norm, gates,
caps, sinks) is in the gradient. This is training, if of one layer at a time: a result says so.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from manyheads.checkpoints.layout import Expected
from manyheads.convert import baselines
from manyheads.convert.head_weights import HeadWeights, Units
from manyheads.convert.layer_run import Layer, LayerRun
from manyheads.convert.regrouped_weights import repeated_in_place
from manyheads.convert.values import ValueMerge
from manyheads.errors import ConversionError
from manyheads.models.door.door import Call, open_door
from manyheads.models.load.resize import attention_items
from manyheads.models.store.patterns import put_together

__all__ = ["FitSettings", "LayerFit", "Look", "Sweep", "plain_start"]

# Windows on which a fit is held against what it started from.
_COMPARED = 4

# Calls a function with each window's attention A' (h, t, s) in the old order of heads, old values (k, s, v) and output (t, m).
Look = Callable[[Tensor, Tensor, Tensor], None]


class Sweep(Protocol):
    """Shows `look` every window; `final`: no other sweep will follow."""

    def __call__(self, look: Look, *, final: bool) -> None:
        """Once over the windows."""


@dataclass(frozen=True)
class FitSettings:
    """How a layer is fitted. Rates are shares of a weight's root mean square, and fall as half a cosine.

    key_steps, joint_steps  of one window each: queries and keys, then all four matrices
    key_kl, joint_kl        c of the two
    """

    key_steps: int = 32
    joint_steps: int = 64
    key_rate: float = 0.02
    joint_rate: float = 0.015
    key_kl: float = 0.3
    joint_kl: float = 0.1

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> FitSettings:
        """From values by name, as text or as numbers; ConversionError for a name that is not a setting."""
        kinds = {name: type(value) for name, value in vars(cls()).items()}
        strange = sorted(set(settings) - set(kinds))
        if strange:
            raise ConversionError(f"fit setting {strange[0]} is not one of {', '.join(kinds)}")
        return cls(**{name: kinds[name](value) for name, value in settings.items()})


@dataclass(frozen=True, eq=False)
class _Window:
    """What the attention module was given for one window."""

    given: tuple[Any, ...]
    named: Mapping[str, Any]


@dataclass(eq=False)
class LayerFit:
    """The attention of one layer with fewer KV heads, as its own module computes it with each of them repeated.

    weights  the old ones;  order: the old query head of each new one, whole old KV heads after each other
    """

    run: LayerRun
    layer: Layer
    weights: HeadWeights
    order: Sequence[int]
    kv_heads: int
    settings: FitSettings
    seed: int = 0
    _windows: list[_Window] = field(default_factory=list)
    _dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        old = self.weights["k"].shape[0]
        if old % self.kv_heads:
            raise ConversionError(
                f"layer {self.layer.index}: {self.kv_heads} KV heads do not divide {old}, and the layer fit repeats them; "
                'valid: method "closed", or a divisor'
            )
        model = self.run.source.model
        self.module = model.get_submodule(self.layer.attention)
        kind = next(self.module.parameters()).dtype
        self._dtype = torch.float32 if self.run.source.from_files else kind
        if self._dtype not in (torch.float32, torch.float64):
            raise ConversionError(
                f"the layer fit computes gradients, and the model is in {kind}; valid: load it in float32"
            )
        parameters = dict(self.module.named_parameters())
        names = {f"{self.layer.attention}.{name}" for name in parameters}
        items = attention_items(self.run.source.family, self.run.source.stack, dict(model.named_parameters()))
        self.items = {name: item for name, item in items.items() if name in names}
        part = next(part.name for item in self.items.values() for part in item.parts)
        self.prefix = part[: part.index(".self.") + len(".self.")]
        self.run.calls(self.layer, lambda _, given, named, __: self._windows.append(_Window(given, dict(named))))

    def fitted(self, start: HeadWeights, values: Callable[[Sweep], ValueMerge] | None) -> tuple[HeadWeights, float]:
        """New weights from `start`, whose query heads stand in `order`, and the share of the output's energy that they lose.

        values  makes shared values in closed form from a sweep over the windows; None where they cannot move
        """
        with (
            self.run.source.holding(self.layer.path),
            open_door(self.run.source.model, implementation=self._attend, mode="eval"),
        ):
            now = {name: each.to(self._dtype) for name, each in start.tensors.items()}
            old = {name: each.to(self._dtype) for name, each in self._in_order().tensors.items()}
            if self.settings.key_steps:
                keys = [name for name in ("q", "k", "q.bias", "k.bias") if name in now]
                whole = old | {name: now[name] for name in keys}
                now |= self._descended(
                    whole, keys, self.settings.key_steps, self.settings.key_rate, self.settings.key_kl
                )
            if values is not None:
                merge = values(partial(self._sweep, now))
                moved = merge.moved_into(self.weights)
                made = self.weights.changed(self.kv_heads, **moved).permuted(self.order)
                now |= {name: made[name].to(self._dtype) for name in ("v", "o", "v.bias", "o.bias") if name in now}
            if self.settings.joint_steps:
                every = [name for name in ("q", "k", "v", "o", "q.bias", "k.bias", "v.bias", "o.bias") if name in now]
                now |= self._descended(
                    now, every, self.settings.joint_steps, self.settings.joint_rate, self.settings.joint_kl
                )
            first = {name: each.to(self._dtype) for name, each in start.tensors.items()}
            with torch.no_grad():
                lost = [self._mean_loss(each, self.settings.joint_kl, _COMPARED) for each in (first, now)]
            now = now if lost[1] < lost[0] else first
        made = HeadWeights(start.spec, {name: each.to(torch.float64) for name, each in now.items()})
        return made, self.loss(made)

    def loss(self, weights: HeadWeights, *, kl: float = 0.0, most: int = _COMPARED) -> float:
        """The mean loss over the first `most` windows."""
        now = {name: each.to(self._dtype) for name, each in weights.tensors.items()}
        with (
            self.run.source.holding(self.layer.path),
            torch.no_grad(),
            open_door(self.run.source.model, implementation=self._attend, mode="eval"),
        ):
            return self._mean_loss(now, kl, most)

    def _in_order(self) -> HeadWeights:
        """The old weights with query heads in the new order, and KV heads as these read them."""
        each = self.weights.spec.num_heads // self.weights["k"].shape[0]
        old = torch.tensor([head // each for head in self.order[::each]])
        made = self.weights.permuted(self.order)
        names = ("k", "k.bias", "v", "v.bias")
        moved = {name: made[name].index_select(0, old) for name in names if name in made.tensors}
        return HeadWeights(made.spec, {**made.tensors, **moved})

    def _descended(
        self, whole: Mapping[str, Tensor], names: Sequence[str], steps: int, rate: float, kl: float
    ) -> dict[str, Tensor]:
        """Adam on `names` among the weights `whole`; these as they were where it ends no better than it began."""
        free = {name: whole[name].clone().requires_grad_() for name in names}
        sizes = {name: float(each.detach().square().mean().sqrt()) for name, each in free.items()}
        groups = [{"params": [each], "lr": rate * (sizes[name] or 1e-3)} for name, each in free.items()]
        adam = torch.optim.Adam(groups, betas=(0.9, 0.95))
        slower = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: (1 + math.cos(math.pi * step / steps)) / 2)
        for window in self._drawn(steps):
            adam.zero_grad()
            with torch.enable_grad():
                self._loss({**whole, **free}, window, kl).backward()
            adam.step()
            slower.step()
        made = {name: each.detach() for name, each in free.items()}
        with torch.no_grad():
            before, after = (self._mean_loss({**whole, **each}, kl, _COMPARED) for each in ({}, made))
        return made if after < before else {name: whole[name] for name in names}

    def _mean_loss(self, weights: Mapping[str, Tensor], kl: float, most: int) -> float:
        found = [float(self._loss(weights, window, kl)) for window in self._windows[:most]]
        return sum(found) / len(found)

    def _drawn(self, steps: int) -> Iterator[_Window]:
        """The windows over and over, shuffled each time."""
        draw, left = random.Random(self.seed), list[_Window]()  # noqa: S311  nothing secret hangs on it
        for _ in range(steps):
            left = left or draw.sample(self._windows, len(self._windows))
            yield left.pop()

    def _loss(self, weights: Mapping[str, Tensor], window: _Window, kl: float) -> Tensor:
        with torch.no_grad():
            y, attention, _ = self._call(None, window)
            attention = attention[:, list(self.order)]
        ours, theirs, _ = self._call(weights, window)
        error = (ours - y).square().sum() / y.square().sum().clamp_min(1e-30)
        if not kl:
            return error
        tiny = torch.finfo(attention.dtype).tiny
        apart = attention * (attention.clamp_min(tiny).log() - theirs.clamp_min(tiny).log())
        return error + kl * apart.sum(-1).mean()

    def _sweep(self, weights: Mapping[str, Tensor], look: Look, *, final: bool) -> None:  # noqa: ARG002
        """A' of new queries and keys, with the old values and what the attention gave before, window by window."""
        back = torch.tensor(self.order).argsort()
        output = self.weights["o"].permute(1, 2, 0).flatten(0, 1)  # (h v, m)
        for window in self._windows:
            with torch.no_grad():
                _, before, call = self._call(None, window)
                _, attention, _ = self._call(weights, window)
            times = call.q.shape[1] // call.v.shape[1]
            values = call.v.to(torch.float64)
            heads = before.to(torch.float64) @ values.repeat_interleave(times, 1)  # (b, h, t, v)
            for at in range(call.q.shape[0]):
                look(attention[at, back].to(torch.float64), values[at], heads[at].transpose(0, 1).flatten(1) @ output)

    def _call(self, weights: Mapping[str, Tensor] | None, window: _Window) -> tuple[Tensor, Tensor, Call]:
        """(y, A (b, h, t, s), the call) of the module on a window, with its own weights or others in their place."""
        with _seeing() as seen:
            if weights is None:
                out = self.module(*window.given, **window.named)
            else:
                out = torch.func.functional_call(self.module, self._stored(weights), window.given, dict(window.named))
        (attention, call) = seen[0]
        return out[0] if isinstance(out, tuple) else out, attention, call

    @staticmethod
    def _attend(call: Call) -> Tensor:
        attention = call.weights()
        if _SEEN:
            _SEEN[-1].append((attention, call))
        times = call.q.shape[1] // call.v.shape[1]
        return attention @ call.v.repeat_interleave(times, 1)

    def _stored(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The module's parameters, from canonical weights with each KV head repeated in its place."""
        old = self.weights["k"].shape[0]

        def whole(name: str) -> Tensor:
            own = name.removeprefix(self.prefix)
            return repeated_in_place(own, weights[own], old)

        return {
            name.removeprefix(f"{self.layer.attention}."): self._put_together(name, item, whole)
            for name, item in self.items.items()
        }

    def _put_together(self, name: str, item: Expected, whole: Callable[[str], Tensor]) -> Tensor:
        made = put_together(item, {part.name: whole(part.name) for part in item.parts})
        return made.reshape(self.module.get_parameter(name.removeprefix(f"{self.layer.attention}.")).shape)


_SEEN: list[list[tuple[Tensor, Call]]] = []


@contextmanager
def _seeing() -> Iterator[list[tuple[Tensor, Call]]]:
    """The attention of the calls that happen inside."""
    _SEEN.append([])
    try:
        yield _SEEN[-1]
    finally:
        _SEEN.pop()


def plain_start(fit: LayerFit, units: Units) -> HeadWeights:
    """Where no closed form can be: of the mean and the first of each group, what the layer itself does better with."""
    return min((baselines.mean(fit.weights, units), baselines.first(fit.weights, units)), key=fit.loss)
