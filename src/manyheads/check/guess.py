"""How a function wants to be called: from the names of its parameters, and by trying it on a tiny input.

What cannot be read from a name is found by moving one key's value and looking which outputs move: that tells the order
of the axes, whether a mask's True shows or blocks, and whether the function is causal, also where its values are wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from manyheads.check import probes
from manyheads.check.adapter import Adapter
from manyheads.check.features import FEATURES, MASK_AXES, check_words
from manyheads.check.layouts import has_batch, has_heads
from manyheads.check.signature import Roles, polarity_in_name, read_roles, signature_of
from manyheads.check.subject import CallError, Subject

__all__ = ["Wishes", "guess"]


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What the user says of the function, instead of having it guessed.

    `no`: features that are not to be tested. `fixed`: parameters with one value always.
    """

    layout: str = ""
    mask: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    no: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = field(default_factory=dict)


def guess(subject: Subject, wishes: Wishes) -> tuple[Adapter, dict[str, str]]:
    """The adapter of `subject.function`, and for each thing taken how it is known: "name", "tried", "told" or "default".

    CallError where no way of calling it gives an output of the right shape; SpecError where its parameters are not
    understood.
    """
    check_words(layout=wishes.layout, mask=wishes.mask, features=wishes.no)
    roles = read_roles(subject.function, wishes.names, wishes.fixed)
    known = {role: "told" if role in wishes.names else "name" for role in roles.names}
    adapter, known["layout"] = _first_call(subject, roles, wishes)
    adapter = _switches(adapter, roles)
    subject = replace(subject, adapter=adapter)
    adapter, known["causal"] = _causal(subject)
    subject = replace(subject, adapter=adapter)
    if "mask" in adapter.names:
        adapter, known["mask"] = _mask(subject, wishes)
    if "padding" in adapter.names:
        adapter = replace(adapter, padding=probes.padding_polarity(replace(subject, adapter=adapter)) or "visible")
    adapter = _bias(replace(subject, adapter=adapter))
    adapter = _weights(replace(subject, adapter=adapter))
    return _lacks(replace(subject, adapter=adapter), wishes), known


def _first_call(subject: Subject, roles: Roles, wishes: Wishes) -> tuple[Adapter, str]:
    """Framework, layout and shape of the result: the first way of calling it that works."""
    errors: list[CallError] = []
    layouts = [wishes.layout] if wishes.layout else ["btd", "bhtd"] if "heads" in roles.names else ["bhtd", "btd", "td"]
    for framework in _frameworks(subject):
        for layout in layouts:
            adapter = Adapter(
                framework=framework, layout=layout, out_layout=layout, names=dict(roles.names),
                positional=roles.positional, required=roles.required,
            )  # fmt: skip
            try:
                return probes.settle_layout(replace(subject, adapter=adapter), told=bool(wishes.layout))
            except CallError as error:
                errors.append(error)
    # an error of the function itself says more than a shape that does not fit, and the likelier framework more than the other
    likely = errors[: len(layouts)]
    raise next((error for error in likely if error.line is not None), likely[0])


def _frameworks(subject: Subject) -> list[str]:
    """torch first, but for functions that speak of numpy and not of torch."""
    try:
        notes = " ".join(str(p.annotation) for p in signature_of(subject.function).parameters.values())
    except (TypeError, ValueError):
        notes = ""
    world = getattr(inspect.unwrap(subject.function), "__globals__", {})
    used = {getattr(value, "__name__", "").partition(".")[0] for value in world.values() if inspect.ismodule(value)}
    speaks_numpy = "ndarray" in notes or ("numpy" in used and "torch" not in used and "Tensor" not in notes)
    return ["numpy", "torch"] if speaks_numpy else ["torch", "numpy"]


def _switches(adapter: Adapter, roles: Roles) -> Adapter:
    window = ""
    if "window" in adapter.names:
        window = "pair" if isinstance(roles.defaults.get("window"), tuple | list) else "keys"
    return replace(adapter, window=window, weights="flag" if "weights" in adapter.names else "")


def _causal(subject: Subject) -> tuple[Adapter, str]:
    adapter = subject.adapter
    if "causal" in adapter.names:
        return replace(adapter, causal="flag"), "name"
    seen = probes.sees_whom(subject, probes.square_problem(subject))
    past, future = torch.ones_like(seen).tril(-1), torch.ones_like(seen).triu(2)  # the diagonals may be what is wrong
    if bool(seen[past].all()) and not bool(seen[future].any()):
        return replace(adapter, causal="always"), "tried"
    before = torch.ones_like(seen).tril(-2)
    if bool(seen[future].all()) and not bool(seen[before].any()):  # causal the wrong way round is causal all the same
        return replace(adapter, causal="always"), "tried"
    return adapter, ""


def _mask(subject: Subject, wishes: Wishes) -> tuple[Adapter, str]:
    """Polarity and axes. What the name promises is held against the function; other names mean what the function does."""
    adapter, stated = subject.adapter, wishes.mask or polarity_in_name(subject.adapter.names["mask"])
    axes = [a for a in MASK_AXES if a == "ts" or has_batch(adapter.layout)]
    if not has_heads(adapter.layout, packed=adapter.packed):
        axes = [a for a in axes if a != "bhts"]
    for choice in axes:
        for polarity in [stated] if stated else ["visible", "blocked", "additive"]:
            tried = replace(adapter, mask=polarity, mask_axes=choice)
            if probes.mask_is(replace(subject, adapter=tried)):
                return tried, ("told" if wishes.mask else "name") if stated else "tried"
    for choice in axes:
        for polarity in [stated] if stated else ["visible", "additive"]:
            tried = replace(adapter, mask=polarity, mask_axes=choice)
            if probes.takes(replace(subject, adapter=tried), probes.masked_problem(subject)) is None:
                return tried, ("told" if wishes.mask else "name") if stated else "default"
    return replace(adapter, mask=stated or "visible", mask_axes=axes[0]), "default"


def _bias(subject: Subject) -> Adapter:
    """A bias has an argument of its own, or is a mask of floats."""
    adapter = subject.adapter
    if "bias" in adapter.names:
        axes = [axes for axes in MASK_AXES if axes != "bhts" or has_heads(adapter.layout, packed=adapter.packed)]
        for choice in axes:
            tried = replace(adapter, bias="bias", bias_axes=choice)
            if probes.takes(replace(subject, adapter=tried), probes.biased_problem(subject)) is None:
                return tried
        return replace(adapter, bias="bias", bias_axes=axes[0])
    tried = replace(adapter, bias="mask")
    if adapter.mask and probes.adds_floats(replace(subject, adapter=tried)):
        return tried
    return adapter


def _weights(subject: Subject) -> Adapter:
    adapter = subject.adapter
    if adapter.weights:
        return adapter
    try:
        out, found = subject.weights(probes.square_problem(subject))
    except CallError:
        return adapter
    square = found.dim() >= 2 and tuple(found.shape[-2:]) == (out.shape[2], out.shape[2])
    return replace(adapter, weights="always") if square else adapter


def _lacks(subject: Subject, wishes: Wishes) -> Adapter:
    """What is not tested: what the user excludes, what has no argument, what it refuses when tried."""
    adapter = subject.adapter
    lacks: dict[str, str] = {feature: f"told not to (--no {feature})" for feature in wishes.no}

    def lack(feature: str, reason: str = "") -> None:
        lacks.setdefault(feature, reason or FEATURES[feature])

    if not has_heads(adapter.layout, packed=adapter.packed):
        for feature in ("heads", "grouped", "multi-query", "mask-heads"):
            lack(feature, "works on one head")
    if not has_batch(adapter.layout):
        for feature in ("batch", "mask-samples"):
            lack(feature, "works on one sequence")
    for feature, taken in {
        "mask": adapter.mask, "padding": adapter.padding, "bias": adapter.bias, "causal": adapter.causal,
        "window": adapter.window, "weights": adapter.weights, "scale": "scale" in adapter.names,
        "softcap": "softcap" in adapter.names, "sinks": "sinks" in adapter.names,
    }.items():  # fmt: skip
        if not taken:
            lack(feature)
    if adapter.mask_axes != "bhts":
        lack("mask-heads", f"its mask is {MASK_AXES[adapter.mask_axes]}")
    if adapter.mask_axes == "ts":
        lack("mask-samples", "its mask is (queries, keys), the same for all sequences")
    if adapter.framework == "numpy":
        lack("gradients", "numpy arrays have no gradients")
        lack("bfloat16", "numpy has no bfloat16")
    for feature, refusal in probes.refusals(subject).items():
        lack(feature, f"it refuses: {refusal}")
    if not probes.has_onnx():
        lack("onnx", "onnx is not installed: pip install onnx")
    return replace(adapter, lacks=lacks)
