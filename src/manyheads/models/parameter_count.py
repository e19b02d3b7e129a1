"""Parameters that a loaded model has, against those that its spec says it must have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from manyheads.checkpoints.families import family
from manyheads.checkpoints.layout import expected_tensors
from manyheads.errors import ManyheadsError
from manyheads.models.shared_memory import distinct_elements, overlapping
from manyheads.spec.inventory import count, weights
from manyheads.spec.stack import StackSpec

__all__ = ["NamedElements", "ParameterCheck", "check_parameters"]

_MOST_NAMES = 200_000


@dataclass(frozen=True)
class NamedElements:
    """A tensor and the number of its elements."""

    name: str
    elements: int


@dataclass(frozen=True)
class ParameterCheck:
    """Elements predicted from the configuration or header alone, and loaded: counted in the model that transformers made. What
    lies in one place of memory counts once, as a tied table does.
    """

    predicted: int
    loaded: int
    predicted_buffers: int
    """stored tensors that are no parameters (DeepSeek-V3's router corrections)"""
    loaded_buffers: int
    task_head: int
    """elements of a head for a task (masked words, a class), which is not priced"""
    equal: bool
    """whether both numbers are as predicted"""
    missing: tuple[NamedElements, ...] = ()
    """where they are not: tensors that were predicted and are not there or have another size"""
    extra: tuple[NamedElements, ...] = ()
    """the other way round"""
    shared: tuple[tuple[str, ...], ...] = ()
    """where they are not: names of tensors that lie in one place of memory"""


def check_parameters(model: Any, stack: StackSpec) -> ParameterCheck:
    """Counts what `model` (transformers) holds and compares it with the inventory of `stack`."""
    inventory = weights(stack)
    predicted = count(inventory)
    predicted_buffers = count(inventory, buffers=True) - predicted
    body = model.base_model if stack.head == "none" else model
    stored = set(body.state_dict())
    parameters = dict(body.named_parameters())
    buffers = {name: tensor for name, tensor in body.named_buffers() if name in stored}
    loaded = distinct_elements(parameters)
    head = distinct_elements(dict(model.named_parameters())) - loaded
    loaded_buffers = distinct_elements(parameters | buffers) - loaded
    equal = (predicted, predicted_buffers) == (loaded, loaded_buffers)
    found = ParameterCheck(predicted, loaded, predicted_buffers, loaded_buffers, head, equal)
    if found.equal:
        return found
    named = parameters | buffers
    missing, extra = _by_name({name: tensor.numel() for name, tensor in named.items()}, model.config, stack)
    return replace(found, missing=missing, extra=extra, shared=overlapping(named))


def _by_name(
    loaded: dict[str, int], config: Any, stack: StackSpec
) -> tuple[tuple[NamedElements, ...], tuple[NamedElements, ...]]:
    """What differs, by the names in files, which a model in memory has too (but for experts that it keeps joined)."""
    known = family(getattr(config, "model_type", "") or "")
    if known is None:
        return (), ()
    try:
        expected = {name: item.elements for name, item in expected_tensors(known, stack, most=_MOST_NAMES).items()}
    except ManyheadsError:
        return (), ()
    missing = tuple(NamedElements(name, n) for name, n in expected.items() if loaded.get(name) != n)
    extra = tuple(NamedElements(name, n) for name, n in loaded.items() if expected.get(name) != n)
    return missing, extra
