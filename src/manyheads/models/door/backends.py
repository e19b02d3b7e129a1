"""What computes attention behind the door: a backend of `layer.backends` by name, or anyone's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from manyheads.errors import BackendError
from manyheads.layer.backends import BACKENDS, NAMES, Selected, select
from manyheads.layer.dispatch import run
from manyheads.models.door.call import Call
from manyheads.quoting import shown

__all__ = ["Function", "Implementation", "check_implementation", "select_implementation"]

# A function of a call that returns (b, h, t, v). It may have a method `supports(call)`, falsy where it cannot do the call.
Function = Callable[[Call], Tensor]
Implementation = str | Function


def check_implementation(implementation: Implementation | None) -> None:
    """Raise BackendError for a name that is none; None stands for "whatever was active before"."""
    if isinstance(implementation, str) and implementation not in NAMES:
        raise BackendError(f"implementation {shown(implementation)} is not one of {', '.join(NAMES)}, nor a function")


def select_implementation(wanted: Sequence[Implementation], call: Call) -> tuple[Selected, Function]:
    """The last of `wanted` that supports the call, "auto" where none does: its name, why it and not a quicker one, and what
    computes the call to (b, h, t, v)."""
    for each in reversed(wanted):
        if isinstance(each, str):
            if each != "kernel" or BACKENDS[each].supports(call):
                return _by_name(each, call)
        elif getattr(each, "supports", lambda _: True)(call):
            return Selected(getattr(each, "__name__", type(each).__name__), "it was asked for"), each
    return _by_name("auto", call)


def _by_name(name: str, call: Call) -> tuple[Selected, Function]:
    selected = select(call, name)
    return selected, partial(run, selected.name)
