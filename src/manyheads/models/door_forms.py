"""What computes attention behind the door: the operators of `manyheads.ops` by name, or anyone's function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from manyheads.errors import BackendError
from manyheads.models.door_call import Call
from manyheads.ops import sdpa, softmax, tiled

__all__ = ["FORMS", "Form", "chosen", "form"]

# A form takes a call and returns (b, h, t, v). It may have a method `supports(call)`, falsy where it cannot do the call.
Form = Callable[[Call], Tensor]

_LARGEST_PLAIN_ELEMENTS = 2**22  # logits of all sequences and heads: 16 MiB of float32


def _plain(call: Call) -> Tensor:
    return softmax.attention(call.q, call.k, call.v, **call.options)  # type: ignore[return-value]


def _tiled(call: Call) -> Tensor:
    return tiled.attention(call.q, call.k, call.v, **call.options)  # type: ignore[return-value]


def _sdpa(call: Call) -> Tensor:
    return sdpa.attention(call.q, call.k, call.v, **call.options)


def _auto(call: Call) -> Tensor:
    """torch's function where it computes this, else written out while that is small, else in tiles."""
    if sdpa.supports(call.q, call.k, call.v, **call.options):
        return _sdpa(call)
    b, h, t, _ = call.q.shape
    return _plain(call) if b * h * t * call.k.shape[2] <= _LARGEST_PLAIN_ELEMENTS else _tiled(call)


FORMS: dict[str, Form] = {"auto": _auto, "plain": _plain, "tiled": _tiled, "sdpa": _sdpa}


def form(implementation: str | Form | None) -> Form | None:
    """The form that is meant; None stands for "whatever was active before"."""
    if implementation is None or callable(implementation):
        return implementation
    found = FORMS.get(implementation)
    if found is None:
        raise BackendError(f"implementation {implementation!r} is not one of {', '.join(FORMS)}, nor a function")
    return found


def chosen(forms: Sequence[Form], call: Call) -> Form:
    """The last of `forms` that supports the call; "auto" where none does."""
    for each in reversed(forms):
        supports = getattr(each, "supports", None)
        if supports is None or supports(call):
            return each
    return _auto
