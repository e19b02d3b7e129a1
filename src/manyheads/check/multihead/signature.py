"""Which parameter of a call plays which role: inputs, weights, heads, masks and the rest."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from manyheads.check.multihead.construct import BUILT, role_of
from manyheads.check.multihead.words import Meaning, meaning_of
from manyheads.check.signature import ROLES as OF_HEADS
from manyheads.check.signature import role_by_name, signature_of
from manyheads.errors import SpecError

__all__ = ["CALLED", "Call", "read_call", "takes_weights"]

CALLED: dict[str, tuple[str, ...]] = {
    "x": (
        "x", "inputs", "input", "hidden_states", "hidden", "embeddings", "embedding", "src", "z", "seq", "sequence", "inp",
        "input_tensor", "emb", "xs", "data", "x_in", "token_embeddings", "input_embeddings",
    ),
    "memory": (
        "memory", "context", "encoder_hidden_states", "encoder_output", "encoder_outputs", "enc_output", "enc_out", "enc",
        "cross", "y", "kv", "key_value_states", "mem", "encoder_out", "source", "ctx", "x_kv", "cross_input",
    ),
    "cache": (
        "past_key_value", "past_key_values", "layer_past", "past_kv", "past", "kv_cache", "cache", "cached_kv", "kvcache",
        "cache_kv", "past_state",
    ),
    "use_cache": ("use_cache",),
    "head_dim": ("head_dim", "d_k", "d_head", "dim_head", "head_size"),
    "d_model": ("d_model", "embed_dim", "model_dim", "n_embd"),
}  # fmt: skip
"""Role -> the names it goes by, beside those of functions of q, k and v; in lower case."""

_BY_NAME = {name: role for role, names in CALLED.items() for name in names}
_FEW = 4  # parameters without a default whose names say nothing: x and at least three weights


@dataclass(frozen=True, kw_only=True)
class Call:
    """role -> parameter, but for weights; parameter -> what weight it is, in their order; and as in Roles."""

    names: Mapping[str, str]
    weights: Mapping[str, Meaning]
    positional: tuple[str, ...]
    required: tuple[str, ...]
    defaults: Mapping[str, Any]

    @property
    def inputs(self) -> str:
        """ "x", "x+memory" or "qkv"."""
        if "k" in self.names or "v" in self.names:
            return "qkv"
        return "x+memory" if "memory" in self.required else "x"


def takes_weights(function: Callable[..., Any]) -> bool:
    """Whether a function is one of x and weights, by its parameters; one of q, k and v otherwise."""
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):
        return False
    if any(_weight(p.name) is not None for p in parameters):
        return True
    unknown = [p for p in parameters if p.default is p.empty and _role(p, {}) is None]
    return len([p for p in unknown if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]) >= _FEW


def read_call(
    function: Callable[..., Any], given: Mapping[str, str], fixed: Mapping[str, Any], *, with_weights: bool
) -> Call:
    """The roles of a call's parameters: as `given` (role -> parameter), else by name, else by position: x first, then,
    `with_weights`, W_q, W_k, W_v and W_o. SpecError where a parameter without a default is not understood."""
    parameters = [
        p for p in signature_of(function).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in fixed
    ]  # fmt: skip
    _known(given, {p.name for p in parameters})
    told = {name: role for role, name in given.items() if role not in BUILT or role in {*CALLED, *OF_HEADS}}
    names: dict[str, str] = {}
    weights: dict[str, Meaning] = {}
    left: list[inspect.Parameter] = []
    for p in parameters:
        meaning = _weight(told.get(p.name, p.name)) if with_weights else None
        role = None if meaning else _role(p, told)
        if meaning is not None:
            weights[p.name] = meaning
        elif role is not None and role not in names:
            names[role] = p.name
        else:
            left.append(p)
    if not {"x", "q"} & set(names) and left:
        names["x"] = left.pop(0).name
    if with_weights:
        left = _weights_by_position(left, weights)
    left = _sizes_by_words(left, names)
    needed = [p.name for p in left if p.default is p.empty]
    if needed:
        raise SpecError(
            f"the parameter {needed[0]!r} has no default and its name is not understood; say what it is with "
            f'names="ROLE={needed[0]}" (roles: {", ".join([*CALLED, *OF_HEADS])}), or give it a fixed value in MANYHEADS_CHECK'
        )
    return _call(parameters, names, weights)


def _known(given: Mapping[str, str], parameters: set[str]) -> None:
    """SpecError for a role that there is not, or a parameter that the call has not; those of constructors are told apart."""
    for role, name in given.items():
        is_weight = _weight(role) is not None
        if not is_weight and role not in {*CALLED, *OF_HEADS, *BUILT}:
            roles = ", ".join(
                [*CALLED, *OF_HEADS, *(name for name in BUILT if name not in OF_HEADS), "w_q", "w_k", "w_v", "w_o"]
            )
            raise SpecError(f"there is no role {role!r}; the roles are {roles}")
        if name not in parameters and role not in BUILT:
            raise SpecError(f"there is no parameter {name!r}; the parameters are {', '.join(sorted(parameters))}")


def _call(parameters: list[inspect.Parameter], names: dict[str, str], weights: dict[str, Meaning]) -> Call:
    if "q" not in names and "x" in names and {"k", "v"} & set(names):
        names["q"] = names.pop("x")
    if "q" in names and not {"k", "v"} & set(names):
        names["x"] = names.pop("q")
    back = {name: role for role, name in names.items()}
    return Call(
        names=names, weights={name: weights[name] for name in (p.name for p in parameters) if name in weights},
        positional=tuple(p.name for p in parameters if p.kind is p.POSITIONAL_ONLY),
        required=tuple(back[p.name] for p in parameters if p.default is p.empty and p.name in back),
        defaults={back[p.name]: p.default for p in parameters if p.name in back and p.default is not p.empty},
    )  # fmt: skip


def _weight(name: str) -> Meaning | None:
    meaning = meaning_of(name)
    known = role_by_name(name) is not None or name.lower() in _BY_NAME
    return meaning if meaning is not None and meaning.says_weight and not known else None


def _role(parameter: inspect.Parameter, told: Mapping[str, str]) -> str | None:
    name = parameter.name
    return told.get(name) or role_by_name(name, parameter.default) or _BY_NAME.get(name.lower())


def _sizes_by_words(left: list[inspect.Parameter], names: dict[str, str]) -> list[inspect.Parameter]:
    """Sizes whose names are in no table, by their words; and a last one that must be given is the number of heads."""
    for p in [p for p in left if p.default is p.empty]:
        role = role_of(p.name)
        if role in ("heads", "kv_heads", "head_dim", "d_model") and role not in names:
            names[role] = p.name
    needed = [p for p in left if p.default is p.empty and p.name not in names.values()]
    if len(needed) == 1 and "heads" not in names:
        names["heads"] = needed[0].name
    return [p for p in left if p.name not in names.values()]


def _weights_by_position(left: list[inspect.Parameter], weights: dict[str, Meaning]) -> list[inspect.Parameter]:
    """Parameters that no name tells are what is missing of W_q, W_k, W_v and W_o, in this order."""
    there = "".join(meaning.role for meaning in weights.values() if not meaning.is_bias)
    missing = [role for role in "qkvo" if role not in there]
    needed = [p for p in left if p.default is p.empty]
    if len(needed) == 2 and missing == list("qkvo"):
        missing = ["qkv", "o"]
    for p, role in zip(needed, missing, strict=False):
        weights[p.name] = Meaning(role)
    return [p for p in left if p.name not in weights]
