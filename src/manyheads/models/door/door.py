"""The one door into real models: an attention function and a mask function, registered with transformers once.

    with open_door(model, observers=[look]) as door:
        model(**batch)
    door.calls            # by attention module

Nearly every family of transformers hands (module, q, k, v, mask, scaling, ...) to the function that its configuration
names. While a door is open that is ours: the innermost implementation that supports the call computes it, gates change the heads'
outputs where they are still apart, at the input of the output projection, and observers look at them. Looking changes
nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from manyheads.errors import BackendError
from manyheads.layer.backends import Selected
from manyheads.layer.dispatch import attend as computed
from manyheads.models.door.attentions import Attentions, find_attentions, hold, release
from manyheads.models.door.backends import Implementation, check_implementation, select_implementation
from manyheads.models.door.call import Call, read_call
from manyheads.models.door.head_outputs import expect, tap, untap
from manyheads.models.door.mask import make_mask
from manyheads.models.door.padding import filled, unwatch, watch
from manyheads.quoting import shown

__all__ = ["NAME", "Call", "Door", "Gate", "Implementation", "Observer", "open_door", "register_once", "unregister"]

NAME = "manyheads"

# Sees a call and its heads' outputs (b, h, t, v); what it returns is ignored.
Observer = Callable[[Call, Tensor], object]
# Takes a call and its heads' outputs (b, h, t, v) and returns what they shall be.
Gate = Callable[[Call, Tensor], Tensor]


class Door:
    """An open model: which modules pass, and how often each was called (recomputations not counted).

    `calls` is by the module's name in the model, as is `selected`: the backend that computed each the last time, and why not a
    quicker one; `outside` names attention modules that do not pass.
    """

    def __init__(
        self,
        model: nn.Module,
        implementation: Implementation | None,
        observers: Sequence[Observer],
        gates: Sequence[Gate],
    ) -> None:
        self.model = model
        self.implementation = implementation
        self.observers = tuple(observers)
        self.gates = tuple(gates)
        self.attentions: Attentions = find_attentions(model)
        self.calls = dict.fromkeys(self.attentions.paths.values(), 0)
        self.selected: dict[str, Selected] = {}

    @property
    def outside(self) -> tuple[str, ...]:
        """Names of attention modules that do not pass through the door."""
        return self.attentions.outside

    def uncalled(self) -> tuple[str, ...]:
        """Names of the modules that pass and were not called yet: after a forward there should be none."""
        return tuple(name for name, count in self.calls.items() if not count)

    def _knows(self, module: nn.Module) -> bool:
        return id(module) in self.attentions.paths


# The doors that this thread, or task, has open, outermost first; and all that are open anywhere, for the backward pass,
# which torch may run in a thread of its own.
_stack: ContextVar[tuple[Door, ...]] = ContextVar("manyheads_doors", default=())
_open: list[Door] = []
_lock = threading.Lock()
# What `enable` wants to be done with a module when it calls.
before_call: list[Callable[[nn.Module], None]] = []


@contextmanager
def open_door(
    model: nn.Module,
    *,
    implementation: Implementation | None = None,
    observers: Sequence[Observer] = (),
    gates: Sequence[Gate] = (),
    mode: Literal["eval", "train"] | None = None,
) -> Iterator[Door]:
    """Send the attention of `model`, a model of transformers, through `implementation`, `gates` and `observers`.

    implementation  "auto", "kernel", "plain", "tiled", "sdpa", or a function of a `Call` that returns (b, h, t, v); if it has a
                    method `supports(call)` that answers no, the one outside it is asked. None: whatever is active, and
                    "auto" where nothing is
    observers       called with (call, outputs) after the gates; not during the recomputation of gradient checkpointing
    gates           called with (call, outputs), return new outputs; in recomputation too, so that gradients are right.
                    Outputs are what the output projection is given, behind a gate or norm that the module has before it
    mode            put the model into this mode while the door is open

    Doors nest, on one model or several; the innermost implementation runs, and all gates and observers of doors that know
    the module, the innermost first. A door is open in the thread that opened it: run others with
    `contextvars.copy_context().run`. Configurations and each module's mode are put back exactly as they were, whatever
    happens inside. Keep the backward pass inside, where checkpointing runs the forward again.

    Raises BackendError where the attention of the model does not pass (falcon, bloom, mpt), naming it; and, from within
    the model, for a keyword that the attention function does not know.
    """
    if isinstance(getattr(model, "_orig_mod", None), nn.Module):
        raise BackendError("the model is compiled and would run past the door; open the module that was compiled")
    check_implementation(implementation)
    door = Door(model, implementation, observers, gates)
    register_once()
    modes = [(module, module.training) for module in model.modules()]
    configs = door.attentions.configs
    hold(configs, NAME)
    tap(door.attentions.projections)
    watch(door.attentions.wordless)
    _enter(door)
    try:
        if mode is not None:
            model.train(mode == "train")
        yield door
    finally:
        _leave(door)
        release(configs)
        untap(door.attentions.projections)
        unwatch(door.attentions.wordless)
        for module, training in modes:
            module.training = training


def _enter(door: Door) -> None:
    with _lock:
        _open.append(door)
    _stack.set((*_stack.get(), door))


def _leave(door: Door) -> None:
    with _lock:
        _open.remove(door)
    _stack.set(tuple(other for other in _stack.get() if other is not door))


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **keywords: Any
) -> tuple[Tensor, Tensor | None]:
    """What transformers' `AttentionInterface` calls: (b, t, h, v), and the probabilities where they were asked for.

    Works without a door too, for models loaded with attn_implementation="manyheads".
    """
    _before_call(module)
    if not _open:  # nothing to look up, which torch.compile could not trace
        call = read_call(module, query, key, value, attention_mask, keywords)
        return _answer(call, computed(call))
    again = _in_backward()
    doors = _doors(module, again=again)
    inner = doors[-1].attentions if doors else None
    call = read_call(
        module, query, key, value, attention_mask, keywords, recomputed=again,
        path=inner.paths[id(module)] if inner else "", layer=inner.layers[id(module)] if inner else -1,
    )  # fmt: skip
    if doors:
        call = replace(call, **_from_around(module, call, doors))
    wanted = [door.implementation for door in doors if door.implementation is not None]
    selected, compute = select_implementation(wanted, call)
    out = compute(call)
    _check_shape(out, call)
    if call.projected:
        expect(module, out, lambda given: _shown(module, call, given, doors, selected), where=call.path)
        return _answer(call, out)
    return _answer(call, _shown(module, call, out, doors, selected))


def _from_around(module: nn.Module, call: Call, doors: Sequence[Door]) -> dict[str, Any]:
    """What the hooks of the doors tell of a call."""
    found: dict[str, Any] = {"projected": any(id(module) in door.attentions.projections for door in doors)}
    if any(id(module) in door.attentions.wordless for door in doors):
        found["filled"] = filled(module, call.q.shape[0], call.q.shape[2])
    return found


def _shown(module: nn.Module, call: Call, out: Tensor, doors: Sequence[Door], selected: Selected) -> Tensor:
    """The outputs after the gates of all doors, seen by their observers."""
    for door in reversed(doors):
        seen = replace(call, path=door.attentions.paths[id(module)])
        for gate in door.gates:
            out = gate(seen, out)
            _check_shape(out, seen)
        if not call.recomputed:
            door.calls[seen.path] += 1
            door.selected[seen.path] = selected
            for observer in door.observers:
                observer(seen, out)
    return out


def _before_call(module: nn.Module) -> None:
    if before_call and not torch.compiler.is_compiling():
        for each in before_call:
            each(module)


def _doors(module: nn.Module, *, again: bool) -> list[Door]:
    """The doors that see this call. A backward pass in a thread of torch's own sees the doors that are open anywhere."""
    mine = [door for door in _stack.get() if door._knows(module)]
    if mine or not again:
        return mine
    with _lock:
        return [door for door in _open if door._knows(module)]


def _in_backward() -> bool:
    """Whether autograd is at work: a forward that runs inside it is a recomputation (torch's checkpoint asks the same)."""
    return torch._C._current_graph_task_id() != -1


def _check_shape(out: object, call: Call) -> None:
    wanted = (*call.q.shape[:3], call.v.shape[3])
    if not isinstance(out, Tensor) or tuple(out.shape) != wanted:
        found = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise BackendError(f"{call.path}: an implementation or gate returned {found}; expected (b, h, t, v) {wanted}")


def _answer(call: Call, out: Tensor) -> tuple[Tensor, Tensor | None]:
    return out.transpose(1, 2).contiguous(), call.weights() if call.wants_weights else None


def register_once() -> None:
    """Register the two functions with transformers as "manyheads"; once or often, the effect is the same.

    Raises BackendError where another function has the name.
    """
    from transformers import AttentionInterface, AttentionMaskInterface

    for interface, function in ((AttentionInterface, attend), (AttentionMaskInterface, make_mask)):
        registered = interface._global_mapping.get(NAME, function)
        if registered is not function:
            raise BackendError(
                f"transformers' {interface.__name__} has another function called {shown(NAME)}: {shown(registered)}"
            )
        interface.register(NAME, function)


def unregister() -> None:
    """Undo `register_once`. Raises BackendError while a door is open."""
    from transformers import AttentionInterface, AttentionMaskInterface

    if _open:
        raise BackendError(f"{len(_open)} doors are open; close them before the functions are taken away")
    for interface in (AttentionInterface, AttentionMaskInterface):
        interface._global_mapping.pop(NAME, None)
