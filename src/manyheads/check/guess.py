"""How a function wants to be called: from the names of its parameters, and by trying it on a tiny input.

What cannot be read from a name is found by moving one key's value and looking which outputs move: that tells the order
of the axes, whether a mask's True shows or blocks, and whether the function is causal, also where its values are wrong.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch

from manyheads.check import probes
from manyheads.check.adapter import Adapter
from manyheads.check.features import FEATURES, MASK_AXES, check_words
from manyheads.check.layouts import has_batch, has_heads
from manyheads.check.signature import Roles, lengths_as_padding, polarity_in_name, read_roles, signature_of
from manyheads.check.subject import CallError, Subject

__all__ = ["Wishes", "always_given", "frameworks", "guess", "settle", "switches"]


_A = TypeVar("_A", bound=Adapter)


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
    by_lengths = "lengths" in roles.names and "padding" not in roles.names
    roles = lengths_as_padding(roles)
    known = {role: "told" if role in wishes.names else "name" for role in roles.names}
    adapter, known["layout"] = _first_call(subject, roles, wishes, by_lengths=by_lengths)
    return settle(replace(subject, adapter=switches(adapter, roles)), wishes, known)


def settle(subject: Subject, wishes: Wishes, known: dict[str, str]) -> tuple[Adapter, dict[str, str]]:
    """The rest, once it can be called: causality, masks, biases, returned weights, and what it lacks."""
    adapter, known["causal"] = _causal(subject)
    subject = replace(subject, adapter=adapter)
    if "mask" in adapter.names:
        adapter, known["mask"] = _mask(subject, wishes)
    if "padding" in adapter.names and adapter.padding != "lengths":
        adapter = replace(adapter, padding=probes.padding_polarity(replace(subject, adapter=adapter)) or "visible")
    adapter = _bias(replace(subject, adapter=adapter))
    adapter = _weights(replace(subject, adapter=adapter))
    adapter = _hint(replace(subject, adapter=adapter))
    return _lacks(replace(subject, adapter=adapter), wishes), known


def _first_call(subject: Subject, roles: Roles, wishes: Wishes, *, by_lengths: bool) -> tuple[Adapter, str]:
    """Framework, layout and shape of the result: the first way of calling it that works, with lengths where it takes them."""
    errors: list[CallError] = []
    refused: list[tuple[Adapter, str]] = []
    layouts = [wishes.layout] if wishes.layout else ["btd", "bhtd"] if "heads" in roles.names else ["bhtd", "btd", "td"]
    for framework in frameworks(subject):
        for layout, always in itertools.product(layouts, (False, True)):
            adapter = Adapter(
                framework=framework, layout=layout, out_layout=layout, names=dict(roles.names),
                positional=roles.positional, required=roles.required, padding="lengths" if by_lengths else "",
            )  # fmt: skip
            for tried in always_given(adapter, wishes) if always else [adapter]:
                try:
                    settled, known = probes.settle_layout(replace(subject, adapter=tried), told=bool(wishes.layout))
                except CallError as error:
                    errors += [] if always else [error]
                    continue
                asked = replace(subject, adapter=settled)
                if by_lengths and probes.takes(asked, probes.padded_problem(asked)) is not None:
                    refused.append((settled, known))
                elif not always or probes.moves(asked):
                    return settled, known
    if refused:
        return refused[0]
    # an error of the function itself says more than a shape that does not fit, and the likelier framework more than the other
    likely = errors[: len(layouts)]
    raise next((error for error in likely if error.line is not None), likely[0])


def always_given(adapter: _A, wishes: Wishes) -> Iterator[_A]:
    """Ways to give a mask and a padding that are required and must not be None, where they hide nothing."""
    needed = tuple(role for role in ("mask", "padding") if role in adapter.required)
    stated = wishes.mask or polarity_in_name(adapter.names.get("mask", ""))
    polarities = [stated] if stated else ["visible", "blocked", "additive"]
    if needed:
        padding = adapter.padding or "visible" if "padding" in needed else adapter.padding
        for axes, polarity in itertools.product(MASK_AXES, polarities if "mask" in needed else [""]):
            yield replace(adapter, always=needed, mask=polarity, mask_axes=axes, padding=padding)


def frameworks(subject: Subject) -> list[str]:
    """torch first, but for functions that speak of numpy and not of torch."""
    try:
        notes = " ".join(str(p.annotation) for p in signature_of(subject.function).parameters.values())
    except (TypeError, ValueError):
        notes = ""
    world = getattr(inspect.unwrap(subject.function), "__globals__", {})
    used = {getattr(value, "__name__", "").partition(".")[0] for value in world.values() if inspect.ismodule(value)}
    speaks_numpy = "ndarray" in notes or ("numpy" in used and "torch" not in used and "Tensor" not in notes)
    return ["numpy", "torch"] if speaks_numpy else ["torch", "numpy"]


def switches(adapter: _A, roles: Roles) -> _A:
    """How a window is said, and whether weights are asked for."""
    window = ""
    if "window" in adapter.names:
        window = "pair" if isinstance(roles.defaults.get("window"), tuple | list) else "keys"
    return replace(adapter, window=window, weights="flag" if "weights" in adapter.names else "")


def _causal(subject: Subject) -> tuple[Adapter, str]:
    adapter = subject.adapter
    if "causal" in adapter.names:
        return replace(adapter, causal="flag"), "name"
    if adapter.causal:
        return adapter, "name" if adapter.causal == "flag" else "tried"
    seen = probes.sees_whom(subject, probes.square_problem(subject))
    past, future = torch.ones_like(seen).tril(-1), torch.ones_like(seen).triu(2)  # the diagonals may be what is wrong
    if bool(seen[past].all()) and not bool(seen[future].any()):
        return replace(adapter, causal="always"), "tried"
    before = torch.ones_like(seen).tril(-2)
    if bool(seen[future].all()) and not bool(seen[before].any()):  # causal the wrong way round is causal all the same
        return replace(adapter, causal="always"), "tried"
    if re.search(r"causal|autoregressive", subject.name, re.IGNORECASE):  # a name is a promise
        return replace(adapter, causal="always"), "name"
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
    takes: list[Adapter] = []
    for choice in axes:
        for polarity in (
            [stated] if stated else dict.fromkeys([adapter.mask or "visible", "visible", "blocked", "additive"])
        ):
            tried = replace(adapter, mask=polarity, mask_axes=choice)
            asked = replace(subject, adapter=tried)
            if probes.takes(asked, probes.masked_problem(asked)) is None:
                takes.append(tried)
                if probes.has_a_known_fault(asked, probes.masked_problem(asked)):
                    return tried, ("told" if wishes.mask else "name") if stated else "tried"
    if takes:
        return takes[0], ("told" if wishes.mask else "name") if stated else "default"
    refusal = probes.takes(replace(subject, adapter=replace(adapter, mask="visible")), probes.masked_problem(subject))
    return replace(adapter, mask="", lacks={**adapter.lacks, "mask": f"it refuses a mask of any axes: {refusal}"}), ""


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


def _hint(subject: Subject) -> Adapter:
    """A causal flag that is a hint beside the mask, and refused without it, is none of its own (torch's module)."""
    adapter, problem = subject.adapter, probes.square_problem(subject)
    if adapter.causal != "flag" or not adapter.mask:
        return adapter
    if probes.takes(subject, replace(problem, causal=True)) is None:
        return _hint_beside_a_mask(subject)
    tokens = problem.q.shape[2]
    visible = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device=problem.q.device).tril()
    if probes.takes(subject, replace(problem, causal=True, visible=visible)) is not None:
        return adapter
    lacks = {**adapter.lacks, "causal": "its causal flag is a hint beside the mask, and refused without it"}
    return replace(adapter, causal="", lacks=lacks)


def _hint_beside_a_mask(subject: Subject) -> Adapter:
    """Under the name that torch gives it, a module's flag may stand for the mask, so that a mask takes its place."""
    adapter = subject.adapter
    if not subject.joins_heads or adapter.names.get("causal") != "is_causal":
        return adapter
    both = replace(probes.masked_problem(subject), causal=True)
    try:
        found, masked = probes.sees_whom(subject, both), probes.sees_whom(subject, replace(both, causal=False))
    except CallError:
        return adapter
    if not bool((found == masked).all()):
        return adapter
    reason = "its is_causal is a hint that a mask takes the place of, as in torch's module"
    return replace(adapter, lacks={**adapter.lacks, "causal-mask": reason})


def _weights(subject: Subject) -> Adapter:
    adapter = subject.adapter
    if adapter.weights:
        return adapter
    try:
        out, found = subject.weights(probes.square_problem(subject))
    except CallError:
        return adapter
    square = found.dim() >= 2 and tuple(found.shape[-2:]) == (out.shape[2], out.shape[2])
    totals = found.detach().double().sum(-1)  # of raw scores, they would be anything
    adds_up = square and torch.allclose(totals, torch.ones_like(totals), rtol=0.0, atol=1e-3)
    return replace(adapter, weights="always") if adds_up else adapter


def _lacks(subject: Subject, wishes: Wishes) -> Adapter:
    """What is not tested: what the user excludes, what has no argument, what it refuses when tried."""
    adapter = subject.adapter
    lacks = {**adapter.lacks, **dict.fromkeys(wishes.no, "told not to")}
    for feature, reason in {**_not_taken(adapter), **_not_held(adapter)}.items():
        lacks.setdefault(feature, reason)
    for feature, refusal in probes.refusals(replace(subject, adapter=replace(adapter, lacks=lacks))).items():
        lacks.setdefault(feature, f"it refuses: {refusal}")
    if not probes.has_onnx():
        lacks.setdefault("onnx", "onnx is not installed: pip install onnx")
    return replace(adapter, lacks=lacks)


def _not_taken(adapter: Adapter) -> dict[str, str]:
    """feature -> why, for what has no argument."""
    lacks = {
        feature: FEATURES[feature]
        for feature, taken in {
            "mask": adapter.mask, "padding": adapter.padding, "bias": adapter.bias, "causal": adapter.causal,
            "window": adapter.window, "weights": adapter.weights, "scale": "scale" in adapter.names,
            "softcap": "softcap" in adapter.names, "sinks": "sinks" in adapter.names,
        }.items() if not taken
    }  # fmt: skip
    if type(adapter) is Adapter:  # a function of q, k and v
        around = ("projections", "biases", "cache", "wide-heads", "dropout")
        lacks |= dict.fromkeys(around, FEATURES["projections"])
    return lacks


def _not_held(adapter: Adapter) -> dict[str, str]:
    """feature -> why, for what its axes or its arrays cannot hold."""
    lacks: dict[str, str] = {}
    if not has_heads(adapter.layout, packed=adapter.packed):
        lacks |= dict.fromkeys(("heads", "grouped", "multi-query", "mask-heads"), "works on one head")
    if not has_batch(adapter.layout):
        lacks |= dict.fromkeys(("batch", "mask-samples"), "works on one sequence")
    if adapter.mask_axes not in ("bhts", "nts"):
        lacks.setdefault("mask-heads", f"its mask is {MASK_AXES[adapter.mask_axes]}")
    if adapter.mask_axes == "ts":
        lacks.setdefault("mask-samples", "its mask is (queries, keys), the same for all sequences")
    if adapter.framework == "numpy":
        lacks |= {"gradients": "numpy arrays have no gradients", "bfloat16": "numpy has no bfloat16"}
    return lacks
