"""Which modules of a model hand their attention to transformers' interface, and the state that sends them to ours."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import nn

from manyheads.errors import BackendError
from manyheads.models.door.head_outputs import INTERFACE, projection_of
from manyheads.models.door.padding import inputs_watched

__all__ = ["Attentions", "find_attentions", "hold", "release"]

# Why a family is refused, where its own code says more than "it does not call the interface".
_REASONS = {
    "falcon": "it chooses between functions of its own and refuses any other name",
    "bloom": "it ignores the name and computes attention itself",
    "mpt": "it ignores the name and computes attention itself",
}


@dataclass(frozen=True, eq=False)
class Attentions:
    """The attention modules of a model.

    paths    name of each module that passes through the door, by its id
    layers   its layer within its stack, by its id, counted from 0
    wordless  by id, those that read no text, to which the model may add padding of its own
    projections  by the id of a module that changes what its heads give before it projects it (gates, norms): its projection
    outside  names of attention modules that do not pass: they run as they always did
    configs  the configurations that say which function the ones that pass call
    """

    paths: dict[int, str]
    layers: dict[int, int]
    outside: tuple[str, ...]
    configs: tuple[Any, ...]
    wordless: dict[int, nn.Module]
    projections: dict[int, nn.Module]


def find_attentions(model: nn.Module) -> Attentions:
    """The attention modules of `model`. Raises BackendError, naming the model and why, where none passes."""
    modules = dict(model.named_modules())
    passing = {name: module for name, module in modules.items() if _passes(type(module).forward)}
    others = [
        name for name, module in modules.items()
        if "Attention" in type(module).__name__ and name not in passing and not _around(name, passing)
        and any(True for _ in module.parameters())
    ]  # fmt: skip
    if not passing:
        raise BackendError(_refusal(model, modules, others))
    configs = _configs(modules, passing)
    held = {id(config) for config in configs}
    shared = [name for name in others if id(getattr(modules[name], "config", None)) in held]
    if shared:
        raise BackendError(
            f"{type(model).__name__}: {shared[0]} ({type(modules[shared[0]]).__name__}) does not call transformers' "
            f"AttentionInterface but shares its configuration with {next(iter(passing))}, which does: one cannot be "
            "changed without the other"
        )
    paths = {id(module): name for name, module in passing.items()}
    layers = _layers(passing)
    projections = {id(module): found for module in passing.values() if (found := projection_of(module)) is not None}
    return Attentions(paths, layers, tuple(others), configs, inputs_watched(model, passing), projections)


@lru_cache(maxsize=512)
def _passes(forward: Callable[..., Any]) -> bool:
    """Whether this forward asks the interface for its function: its source is the only sign there is."""
    try:
        return INTERFACE in inspect.getsource(forward)
    except (OSError, TypeError):
        return False


def _around(name: str, passing: Iterable[str]) -> bool:
    """Whether a module holds one that passes, or is inside one."""
    return any(other.startswith(f"{name}.") or name.startswith(f"{other}.") or not name for other in passing)


def _configs(modules: dict[str, nn.Module], passing: dict[str, nn.Module]) -> tuple[Any, ...]:
    """The configurations of the modules that pass and of every model around them, where masks are made."""
    from transformers import PreTrainedModel

    found: dict[int, Any] = {}
    for name, module in passing.items():
        parts = name.split(".")
        around = [modules.get(".".join(parts[:depth])) for depth in range(len(parts))]
        for each in (*(a for a in around if isinstance(a, PreTrainedModel)), module):
            config = getattr(each, "config", None)
            if config is not None and hasattr(config, "_attn_implementation_internal"):
                found[id(config)] = config
    return tuple(found.values())


def _refusal(model: nn.Module, modules: dict[str, nn.Module], others: list[str]) -> str:
    kind = getattr(getattr(model, "config", None), "model_type", "")
    name = f"{type(model).__name__} ({kind})" if kind else type(model).__name__
    own = f"{others[0]}, a {type(modules[others[0]]).__name__}, " if others else "it "
    why = _REASONS.get(kind, f"{own}computes attention itself")
    return (
        f"{name}: its attention does not pass through transformers' AttentionInterface ({why}), so nothing could be seen or "
        "replaced; valid: models that call it, as llama, gpt2, bert and t5 do"
    )


def _layers(passing: dict[str, nn.Module]) -> dict[int, int]:
    """By id. Where the numbers of a stack do not tell its modules apart (blocks in stages, groups of layers), their order."""
    stacks: dict[str, list[str]] = {}
    for name in passing:
        stacks.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    found: dict[int, int] = {}
    for names in stacks.values():
        numbers = [_layer(name, passing[name]) for name in names]
        if min(numbers) < 0 or len(set(numbers)) < len(numbers):
            numbers = list(range(len(names)))
        found |= {id(passing[name]): number for name, number in zip(names, numbers, strict=True)}
    return found


def _layer(name: str, module: nn.Module) -> int:
    own = getattr(module, "layer_idx", None)
    if isinstance(own, int) and not isinstance(own, bool):
        return own
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return numbers[0] if numbers else -1


# Configurations that are set to ours: what they said before, and how many doors hold them. Two threads may open one
# model; the first sets, the last restores.
_held: dict[int, tuple[Any, Any, int]] = {}
_lock = threading.Lock()


def hold(configs: Iterable[Any], name: str) -> None:
    """Set the attention function of each configuration to `name`, until `release`."""
    with _lock:
        for config in configs:
            _, before, doors = _held.get(id(config), (config, config._attn_implementation_internal, 0))
            _held[id(config)] = (config, before, doors + 1)
            config._attn_implementation_internal = name


def release(configs: Iterable[Any]) -> None:
    """Give back what `hold` took; the last one to do so restores what each configuration said."""
    with _lock:
        for config in configs:
            _, before, doors = _held.pop(id(config))
            if doors > 1:
                _held[id(config)] = (config, before, doors - 1)
            else:
                config._attn_implementation_internal = before
