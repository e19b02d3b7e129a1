"""What computes attention behind the door: the decode kernel, the operators of `manyheads.ops` by name, anyone's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from manyheads.errors import BackendError
from manyheads.models.door.call import Call
from manyheads.models.door.decode import KERNEL
from manyheads.ops import sdpa, softmax, tiled
from manyheads.ops.answer import No, Yes
from manyheads.ops.call import AttentionCall
from manyheads.ops.deferred import widened
from manyheads.quoting import shown

__all__ = ["FORMS", "Form", "Taken", "chosen", "form", "pick", "taken"]

# A form takes a call and returns (b, h, t, v). It may have a method `supports(call)`, falsy where it cannot do the call.
Form = Callable[[Call], Tensor]

_LARGEST_PLAIN_ELEMENTS = 2**22  # logits of all sequences and heads: 16 MiB of float32


class Taken:
    """Which form computes a call, and why not a quicker one: put together when somebody reads it, as of a `No`."""

    def __init__(self, name: str, *reasons: str | No) -> None:
        self.name, self._reasons = name, reasons

    @property
    def reason(self) -> str:
        """Why not a quicker form; "" where there is none."""
        return "; ".join(each.reason if isinstance(each, No) else each for each in self._reasons)

    def __repr__(self) -> str:
        return f"Taken({shown(self.name)}, {shown(self.reason)})"


def _plain(call: Call) -> Tensor:
    return softmax.attention(call.q, widened(call.k), widened(call.v), **call.options)  # type: ignore[return-value]


def _tiled(call: Call) -> Tensor:
    return tiled.attention(call.q, widened(call.k), widened(call.v), **call.options)  # type: ignore[return-value]


def _sdpa(call: Call) -> Tensor:
    return sdpa.attention(call.q, widened(call.k), widened(call.v), **call.options)


def pick(call: Call) -> Taken:
    """What "auto" takes: the decode kernel where it is the quickest, else torch's function where it computes this, else the
    kernel after all, else written out while that is small, else in tiles. In a graph, nothing depends on lengths.
    """
    in_graph = torch.compiler.is_compiling()
    kernel = KERNEL.supports(call) if in_graph else KERNEL.pays(call)
    if isinstance(kernel, Yes):
        return Taken("kernel")
    other = sdpa.supports(AttentionCall.checked(call.q, call.k, call.v, **call.options))
    if isinstance(other, Yes):
        return Taken("sdpa", kernel)
    if in_graph:
        return Taken("plain", kernel, other)
    kernel = KERNEL.supports(call)
    if isinstance(kernel, Yes):
        return Taken("kernel")
    b, h, t, _ = call.q.shape
    name = "plain" if b * h * t * call.k.shape[2] <= _LARGEST_PLAIN_ELEMENTS else "tiled"
    return Taken(name, kernel, other)


def _auto(call: Call) -> Tensor:
    return FORMS[pick(call).name](call)


FORMS: dict[str, Form] = {"auto": _auto, "kernel": KERNEL, "plain": _plain, "tiled": _tiled, "sdpa": _sdpa}


def form(implementation: str | Form | None) -> Form | None:
    """The form that is meant; None stands for "whatever was active before"."""
    if implementation is None or callable(implementation):
        return implementation
    found = FORMS.get(implementation)
    if found is None:
        raise BackendError(f"implementation {shown(implementation)} is not one of {', '.join(FORMS)}, nor a function")
    return found


def chosen(forms: Sequence[Form], call: Call) -> Form:
    """The last of `forms` that supports the call; "auto" where none does."""
    for each in reversed(forms):
        supports = getattr(each, "supports", None)
        if supports is None or supports(call):
            return each
    return _auto


def taken(form: Form, call: Call) -> Taken:
    """What `form` comes to for this call: a name of `FORMS`, or that of the function, and why it is not a quicker one."""
    if form is _auto:
        return pick(call)
    names = [name for name, each in FORMS.items() if each is form]
    return Taken(names[0] if names else getattr(form, "__name__", type(form).__name__), "it was asked for")
