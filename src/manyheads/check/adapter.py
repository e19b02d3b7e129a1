"""How a function wants to be called, as data; and the arguments of a call, made from a problem."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from manyheads.check.layouts import pack, reduce_mask
from manyheads.check.problem import Problem, default_scale

__all__ = ["Adapter", "arguments", "foreign", "masks_of", "roles_given", "switches_of"]


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """What was taken: the function's conventions.

    framework    "torch" or "numpy" arrays
    layout       of q, k and v: a key of layouts.LAYOUTS; out_layout: of the result
    names        role -> parameter: q, k, v, mask, padding, bias, causal, window, scale, softcap, sinks, heads, kv_heads,
                 grouped, offset, dropout, training, weights
    positional   parameters passed by position, in order
    required     roles that have no default
    mask         "visible", "blocked", "additive" or "" for none; padding likewise, or "lengths": tokens before the padding
    always       of mask and padding, those that are given where nothing is hidden, too: the function does without none
    mask_axes    a key of layouts.MASK_AXES; bias_axes likewise
    bias         "bias": an argument of its own; "mask": floats given as the mask; "": none
    causal       "flag", "always" or ""
    window       "keys": W; "pair": (W - 1, 0); "": none
    result       "array", or "tuple" with the output first
    weights      "flag": returned when asked; "always"; "" for never
    lacks        feature -> why it is not tested
    """

    framework: str = "torch"
    layout: str = "bhtd"
    out_layout: str = "bhtd"
    names: Mapping[str, str] = field(default_factory=lambda: {"q": "q", "k": "k", "v": "v"})
    positional: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    mask: str = ""
    mask_axes: str = "bhts"
    padding: str = ""
    always: tuple[str, ...] = ()
    bias: str = ""
    bias_axes: str = "bhts"
    causal: str = ""
    window: str = ""
    result: str = "array"
    weights: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)

    @property
    def packed(self) -> bool:
        """Whether the heads lie side by side in the last axis."""
        return self.layout in ("btd", "tbd") and "heads" in self.names

    def to_data(self) -> dict[str, Any]:
        """As JSON holds it; `Adapter.from_data` reads it back."""
        return {**asdict(self), **{name: list(getattr(self, name)) for name in ("positional", "required", "always")}}

    @staticmethod
    def from_data(data: Mapping[str, Any]) -> Adapter:
        """The inverse of `to_data`."""
        return Adapter(**{**data, **{name: tuple(data[name]) for name in ("positional", "required", "always")}})


def arguments(
    adapter: Adapter,
    problem: Problem,
    *,
    weights: bool = False,
    change: Callable[[str, Tensor], Tensor] | None = None,
) -> dict[str, Any]:
    """parameter -> value for one call. `change` (role, tensor) may swap q, k and v for other tensors of equal value."""
    values: dict[str, Any] = {role: pack(getattr(problem, role), adapter.layout) for role in ("q", "k", "v")}
    if change is not None:
        values = {role: change(role, tensor) for role, tensor in values.items()}
    values |= masks_of(adapter, problem) | switches_of(adapter, problem, weights=weights)
    if problem.sinks is not None:
        values["sinks"] = problem.sinks
    return {adapter.names[role]: foreign(value, adapter) for role, value in values.items() if role in adapter.names}


def roles_given(adapter: Adapter, given: Mapping[str, Any]) -> dict[str, Any]:
    """role -> value of the arguments of a call; what has no role, as a weight, under its own name."""
    parameters = {parameter: role for role, parameter in adapter.names.items()}
    return {parameters.get(name, name): value for name, value in given.items()}


def switches_of(adapter: Adapter, problem: Problem, *, weights: bool) -> dict[str, Any]:
    """What is a number or a yes, given where the problem needs it or the function does."""
    (_, heads, queries, _), kv_heads, keys = problem.q.shape, problem.k.shape[1], problem.k.shape[2]
    values: dict[str, Any] = {
        "causal": problem.causal or problem.window is not None,
        "heads": heads,
        "kv_heads": kv_heads,
        "grouped": heads != kv_heads,
        "offset": keys - queries,
        "dropout": 0.0,
        "training": False,
    }
    if adapter.weights == "flag":
        values["weights"] = weights
    if problem.scale is not None or "scale" in adapter.required:
        values["scale"] = default_scale(problem)
    if problem.softcap is not None or "softcap" in adapter.required:
        values["softcap"] = problem.softcap
    if problem.window is not None:
        values["window"] = (problem.window - 1, 0) if adapter.window == "pair" else problem.window
    return values | {role: None for role in ("window", "sinks") if role in adapter.required and role not in values}


def masks_of(adapter: Adapter, problem: Problem) -> dict[str, Any]:
    """role -> what hides keys or is added to scores, in the way and with the axes that the function takes."""
    values: dict[str, Any] = {role: None for role in ("mask", "padding", "bias") if role in adapter.required}
    (batch, heads, queries, _), keys = problem.q.shape, problem.k.shape[2]
    visible, keep, bias = problem.visible, problem.keep, problem.bias
    if keep is None and "padding" in adapter.always:
        keep = torch.ones(batch, keys, dtype=torch.bool, device=problem.q.device)
    if visible is None and "mask" in adapter.always:
        visible = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=problem.q.device)
    if keep is not None and adapter.padding:
        kept = keep if "b" in adapter.layout else keep[0]
        values["padding"] = kept.sum(-1) if adapter.padding == "lengths" else _polarised(kept, adapter.padding, problem)
    if bias is not None and adapter.bias == "bias":
        values["bias"] = reduce_mask(bias, adapter.bias_axes, batch, heads)
    if bias is not None and adapter.bias == "mask":
        both = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
        values["mask"] = reduce_mask(both, adapter.mask_axes, batch, heads)
    elif visible is not None and adapter.mask:
        values["mask"] = _polarised(reduce_mask(visible, adapter.mask_axes, batch, heads), adapter.mask, problem)
    return values


def _polarised(visible: Tensor, polarity: str, problem: Problem) -> Tensor:
    if polarity == "additive":
        return torch.zeros(visible.shape, dtype=problem.dtype, device=visible.device).masked_fill(~visible, -torch.inf)
    return ~visible if polarity == "blocked" else visible


def foreign(value: Any, adapter: Adapter) -> Any:
    """A tensor as the function's framework has it."""
    return value.numpy() if adapter.framework == "numpy" and isinstance(value, Tensor) else value
