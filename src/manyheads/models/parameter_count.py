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

__all__ = ["ParameterCheck", "check_parameters"]

_MOST_NAMES = 200_000


@dataclass(frozen=True)
class ParameterCheck:
    """Elements predicted and loaded; what lies in one place of memory counts once, as a tied table does, and buffers that
    are stored are counted apart.

    `task_head`: elements of a head for a task (masked words, a class), which stands on the model and is no part of what
    is priced. `missing`: tensors that were predicted and are not there or have another size; `extra`: the other way
    round, each (name, elements). `shared`: names of tensors that look into one storage. All are looked up only where the
    numbers differ.
    """

    predicted: int
    loaded: int
    predicted_buffers: int
    loaded_buffers: int
    task_head: int = 0
    missing: tuple[tuple[str, int], ...] = ()
    extra: tuple[tuple[str, int], ...] = ()
    shared: tuple[tuple[str, ...], ...] = ()

    @property
    def equal(self) -> bool:
        """Whether both numbers are as predicted."""
        return self.predicted == self.loaded and self.predicted_buffers == self.loaded_buffers

    def as_dict(self) -> dict[str, Any]:
        """The same for JSON."""
        return {
            "predicted": self.predicted,
            "loaded": self.loaded,
            "predicted_buffers": self.predicted_buffers,
            "loaded_buffers": self.loaded_buffers,
            "task_head": self.task_head,
            "equal": self.equal,
            "missing": [{"name": name, "elements": n} for name, n in self.missing],
            "extra": [{"name": name, "elements": n} for name, n in self.extra],
            "shared": [list(names) for names in self.shared],
        }


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
    found = ParameterCheck(
        predicted, loaded, predicted_buffers, distinct_elements(parameters | buffers) - loaded, head
    )  # fmt: skip
    if found.equal:
        return found
    named = parameters | buffers
    missing, extra = _by_name({name: tensor.numel() for name, tensor in named.items()}, model.config, stack)
    return replace(found, missing=missing, extra=extra, shared=overlapping(named))


def _by_name(
    loaded: dict[str, int], config: Any, stack: StackSpec
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, int], ...]]:
    """What differs, by the names in files, which a model in memory has too (but for experts that it keeps joined)."""
    known = family(getattr(config, "model_type", "") or "")
    if known is None:
        return (), ()
    try:
        expected = {name: item.elements for name, item in expected_tensors(known, stack, most=_MOST_NAMES).items()}
    except ManyheadsError:
        return (), ()
    missing = tuple((name, n) for name, n in expected.items() if loaded.get(name) != n)
    extra = tuple((name, n) for name, n in loaded.items() if expected.get(name) != n)
    return missing, extra
