"""What the user named, made into a subject: a function of q, k and v, or multi-head attention with its weights.

a function of q, k, v             taken as it is
a function of x, W_q, W_k, ...    multi-head attention
a class                           made with sizes of ours; with weights it is multi-head attention, without it is a
                                  function of q, k and v; so is a method of a class, called on such an object
an object                         as its class, with the sizes that it has
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from manyheads.check.adapter import Adapter
from manyheads.check.guess import Wishes, guess
from manyheads.check.load import Loaded
from manyheads.check.multihead.adapter import HeadsAdapter
from manyheads.check.multihead.construct import SMALL, Plan, Wanted, plan_of
from manyheads.check.multihead.guess import guess_heads
from manyheads.check.multihead.signature import takes_weights
from manyheads.check.multihead.state import arrays_of
from manyheads.check.multihead.subject import MultiheadSubject, caller
from manyheads.check.signature import read_roles, signature_of
from manyheads.check.subject import CallError, Subject, called
from manyheads.errors import CheckpointError

__all__ = ["adapter_of", "subject_of"]

# what a constructor is told of a call with q (b, h, t, d)
_OF_Q = {
    "head_dim": "q.shape[-1]", "temperature": "q.shape[-1] ** 0.5", "scale": "q.shape[-1] ** -0.5",
    "heads": "(q.shape[1] if q.ndim == 4 else 1)", "d_model": "(q.shape[1] if q.ndim == 4 else 1) * q.shape[-1]",
}  # fmt: skip


def subject_of(loaded: Loaded, wishes: Wishes, options: Mapping[str, Any]) -> Subject:
    """The subject; `options`: the fields that all subjects have. CheckpointError where a class cannot be made."""
    thing, options = loaded.thing, {**options, "fixed": wishes.fixed}
    if loaded.owner is not None and loaded.name.rpartition(".")[2] in (
        "forward",
        "__call__",
    ):  # the object itself is called so
        thing, options["name"] = loaded.owner, loaded.owner.__name__
    elif loaded.owner is not None:
        plan = _plan(loaded.owner, loaded.module, wishes)
        return _per_call(plan, lambda made: getattr(made, loaded.name.rpartition(".")[2]), wishes, options)
    if inspect.isclass(thing):
        plan = _plan(thing, loaded.module, wishes)
        made = _made(plan, SMALL, options)
        if not _has_weights(made):
            return _per_call(plan, caller, wishes, options)
        fixed = _fitting(wishes.fixed, caller(made))
        return MultiheadSubject(thing, HeadsAdapter(kind="class"), plan=plan, thing=made, **{**options, "fixed": fixed})
    if not inspect.isroutine(thing) and _has_weights(thing):
        return MultiheadSubject(caller(thing), HeadsAdapter(kind="object"), thing=thing, **options)
    if takes_weights(thing):
        return MultiheadSubject(thing, HeadsAdapter(kind="function"), **options)
    return Subject(thing, Adapter(), **options)


def adapter_of(subject: Subject, wishes: Wishes) -> tuple[Adapter, dict[str, str]]:
    """How it is called, and how that is known."""
    return guess_heads(subject, wishes) if isinstance(subject, MultiheadSubject) else guess(subject, wishes)


def _plan(cls: Callable[..., Any], module: ModuleType, wishes: Wishes) -> Plan:
    return plan_of(cls, module, wishes.names, wishes.fixed)


def _made(plan: Plan, wanted: Wanted, options: Mapping[str, Any]) -> Any:
    try:
        with called(Subject(plan.cls, Adapter(), **options)):
            return plan.make(wanted)
    except CallError as error:
        where = f" (line {error.line})" if error.line else ""
        told = ", ".join(f"{name}={value!r}" for name, value in plan.arguments(wanted).items() if not callable(value))
        raise CheckpointError(f"{options['name']}({told}) cannot be made: {error}{where}") from error


def _has_weights(thing: Any) -> bool:
    """Whether it holds a matrix, or a lazy layer that will make one."""
    return any(hasattr(array, "materialize") or len(array.shape) > 1 for array in arrays_of(thing).values())


def _fitting(fixed: Mapping[str, Any], function: Callable[..., Any]) -> dict[str, Any]:
    """The fixed parameters that a call has."""
    return {name: value for name, value in fixed.items() if name in signature_of(function).parameters}


def _per_call(
    plan: Plan, bound: Callable[[Any], Callable[..., Any]], wishes: Wishes, options: Mapping[str, Any]
) -> Subject:
    """A function of q, k and v that makes an object for the sizes of its call, where the constructor asks for sizes."""
    sample = bound(_made(plan, SMALL, options))
    fixed = _fitting(wishes.fixed, sample)
    told = {role: name for role, name in wishes.names.items() if name in signature_of(sample).parameters}
    query = read_roles(sample, told, fixed).names["q"]
    if not {*plan.parameters, *plan.world} & set(_OF_Q):
        return Subject(sample, Adapter(), **{**options, "fixed": fixed, "name": _spelled(plan, options["name"], "")})

    def attention(*args: object, **given: Any) -> Any:
        q = given.get(query, args[0] if args else None)
        heads = q.shape[1] if q.ndim == 4 else 1
        size = {"d_model": heads * q.shape[-1], "heads": heads, "kv_heads": heads, "head_dim": q.shape[-1]}
        made = plan.make(Wanted(**size, max_len=512, batch=max(q.shape[0], 1)))
        return bound(made.eval() if hasattr(made, "eval") else made)(*args, **given)

    attention.__signature__ = signature_of(sample)  # type: ignore[attr-defined]
    attention.__wrapped__ = getattr(sample, "forward", sample)  # type: ignore[attr-defined]
    return Subject(attention, Adapter(), **{**options, "fixed": fixed, "name": _spelled(plan, options["name"], query)})


def _spelled(plan: Plan, name: str, query: str) -> str:
    """How the object is made in Python, from the name of q."""
    words = [
        f"{p}={_OF_Q[role].replace('q.', f'{query}.') if role in _OF_Q else repr(SMALL.value(role))}"
        for role, parameters in plan.parameters.items() for p in parameters
    ]  # fmt: skip
    owner, dot, method = name.rpartition(".")
    return f"{owner}({', '.join(words)}).{method}" if dot and owner.rpartition(".")[2] == plan.cls.__name__ else (
        f"{name}({', '.join(words)})"
    )  # fmt: skip
