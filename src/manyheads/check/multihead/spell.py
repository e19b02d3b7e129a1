"""A call of multi-head attention as Python that can be pasted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from manyheads.check.multihead import state
from manyheads.check.multihead.problem import Multihead
from manyheads.check.multihead.storage import in_places
from manyheads.check.spell import MOST_NUMBERS, array_as_code, size_of, value_as_code

if TYPE_CHECKING:
    from manyheads.check.multihead.subject import MultiheadSubject

__all__ = ["heads_as_code"]

_ROOM = 4 * MOST_NUMBERS  # x and four matrices, where others have q, k and v


def heads_as_code(subject: MultiheadSubject, problem: Multihead) -> str:
    """Python that makes the call again; where it would be long, what the call holds."""
    given: dict[str, Any] = {**subject.arguments(problem), **subject.fixed}
    arrays = {name: value for name, value in given.items() if hasattr(value, "shape")}
    weights = _weights(subject, problem)
    if sum(map(size_of, arrays.values())) + sum(map(size_of, weights.values())) > _ROOM:
        shapes = ", ".join(f"{name} {tuple(value.shape)}" for name, value in (arrays | weights).items())
        return f"too long to print: {shapes}; seed {subject.seed}"
    lines = [f"{name} = {array_as_code(value)}" for name, value in arrays.items()]
    words = [f"{name}={name if name in arrays else _said(value)}" for name, value in given.items()]
    if subject.adapter.kind == "function":
        return "\n".join([*lines, f"{subject.name}({', '.join(words)})"])
    return "\n".join([*lines, *_object(subject, problem, weights), f"module({', '.join(words)})"])


def _weights(subject: MultiheadSubject, problem: Multihead) -> dict[str, Tensor]:
    """path -> what is written there, for an object."""
    if subject.adapter.kind == "function":
        return {}
    return in_places(subject.adapter.slots, problem)


def _object(subject: MultiheadSubject, problem: Multihead, weights: dict[str, Tensor]) -> list[str]:
    lines = [f"module = {subject.name}"]
    if subject.plan is not None:
        wanted = subject.wanted(problem)
        lines = [f"{name} = {wanted.value(role)!r}" for role, names in subject.plan.world.items() for name in names]
        words = [
            f"{name}={'config' if name in subject.plan.parameters.get('config', ()) else _said(value)}"
            for name, value in subject.plan.arguments(wanted).items()
        ]
        lines.append(f"module = {subject.name}({', '.join(words)})")
    thing = subject.object_for(problem)
    if subject.plan is not None and "config" in subject.plan.parameters:
        subject.plan.configured.clear()
        subject.plan.make(subject.wanted(problem))  # to see what it asks for
        lines.insert(-1, f"config = {_config(subject.plan.configured)}")
    if isinstance(thing, nn.Module):
        lines[-1] += ".eval()"
        return lines + [
            f"module.get_parameter({path!r}).data = {array_as_code(array)}" for path, array in weights.items()
        ]
    arrays = state.arrays_of(thing)
    return [
        *lines,
        *(f"module.{path}[...] = {array_as_code(_like(array, arrays[path]))}" for path, array in weights.items()),
    ]


def _config(asked: dict[str, Any]) -> str:
    """What the class asked of its configuration."""
    words = {name: value for name, value in asked.items() if name != "as a dict"}
    if "as a dict" in asked:
        return repr(words)
    return f"types.SimpleNamespace({', '.join(f'{name}={value!r}' for name, value in words.items())})"


def _like(value: Tensor, array: Any) -> Any:
    return value.detach() if isinstance(array, Tensor) else value.detach().numpy()


def _said(value: Any) -> str:
    return f"[{', '.join(map(array_as_code, value))}]" if isinstance(value, list) else value_as_code(value)
