"""Which parameter plays which role, by its name; whatever is not understood is said, not guessed at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from manyheads.errors import SpecError

__all__ = ["ROLES", "Roles", "lengths_as_padding", "polarity_in_name", "read_roles", "role_by_name", "signature_of"]

ROLES: dict[str, tuple[str, ...]] = {
    "q": ("q", "query", "queries", "xq", "query_states", "q_states"),
    "k": ("k", "key", "keys", "xk", "key_states", "k_states"),
    "v": ("v", "value", "values", "xv", "value_states", "v_states"),
    "mask": (
        "mask", "attn_mask", "attention_mask", "visible", "allowed", "keep", "keep_mask", "visible_mask", "blocked",
        "ignore", "ignore_mask", "blocked_mask", "masked", "src_mask", "tgt_mask", "additive_mask",
    ),
    "padding": ("padding", "padding_mask", "key_padding_mask", "pad_mask", "key_mask", "src_key_padding_mask"),
    "lengths": (
        "valid_lens", "valid_len", "valid_length", "valid_lengths", "lengths", "lens", "seq_lens", "seqlens", "seq_lengths",
        "key_lengths", "kv_lengths", "sequence_lengths",
    ),
    "bias": ("bias", "attn_bias", "attention_bias", "position_bias", "pos_bias", "score_bias"),
    "causal": ("causal", "is_causal", "use_causal", "use_causal_mask", "causal_mask", "autoregressive"),
    "window": ("window", "window_size", "sliding_window", "local_window", "local_window_size", "attention_window"),
    "scale": ("scale", "scaling", "softmax_scale", "sm_scale", "scale_factor"),
    "softcap": (
        "softcap", "soft_cap", "softcapping", "logit_cap", "logit_softcap", "logits_soft_cap", "attn_logit_softcapping",
    ),
    "sinks": ("sinks", "sink", "s_aux", "attention_sinks", "attn_sinks"),
    "heads": (
        "num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads", "q_num_heads", "h", "nheads",
        "num_head", "n_attention_heads",
    ),
    "kv_heads": ("num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads", "num_key_value_heads", "kv_num_heads"),
    "grouped": ("enable_gqa",),
    "offset": ("offset", "query_offset", "q_offset", "start_pos", "past_length"),
    "dropout": ("dropout", "dropout_p", "p_dropout", "dropout_rate", "attention_dropout"),
    "training": ("training", "is_training", "train"),
    "weights": (
        "return_weights", "need_weights", "return_attention", "return_attn", "return_attn_weights",
        "return_attention_weights", "output_attentions", "return_probs",
    ),
}  # fmt: skip
"""Role -> the names it goes by, in lower case."""

_BY_NAME = {name: role for role, spelled in ROLES.items() for name in spelled}
_POLARITY = {
    "visible": ("visible", "visible_mask", "allowed", "keep", "keep_mask"),
    "blocked": ("blocked", "blocked_mask", "ignore", "ignore_mask", "masked"),
    "additive": ("additive_mask",),
}


@dataclass(frozen=True)
class Roles:
    """role -> parameter; the parameters that go by position, those without a default, and the defaults."""

    names: Mapping[str, str]
    positional: tuple[str, ...]
    required: tuple[str, ...]
    defaults: Mapping[str, Any]
    left: tuple[str, ...]


def polarity_in_name(parameter: str) -> str:
    """What a mask's name promises: visible (True = may attend), blocked, additive, or "" where it promises nothing."""
    return next((polarity for polarity, names in _POLARITY.items() if parameter.lower() in names), "")


def role_by_name(name: str, default: Any = inspect.Parameter.empty) -> str | None:
    """The role of a parameter, as far as its name and its default tell."""
    role = _BY_NAME.get(name.lower())
    if role == "causal" and not isinstance(default, bool) and name.lower() == "causal_mask":
        return "mask"  # a tensor, by its default
    if role == "dropout" and (default is None or callable(default)) and default is not inspect.Parameter.empty:
        return None  # a module, by its default
    return role


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """What it takes: for a module of torch, what its forward does."""
    return inspect.signature(getattr(function, "forward", function))


def read_roles(function: Callable[..., Any], given: Mapping[str, str], fixed: Mapping[str, Any]) -> Roles:
    """The roles of a function's parameters: as `given` (role -> parameter), else by name, q, k and v else by position.

    `fixed`: parameters that always get the same value. SpecError where a parameter without a default is not understood.
    """
    unknown = sorted(set(given) - set(ROLES))
    if unknown:
        raise SpecError(f"there is no role {unknown[0]!r}; the roles are {', '.join(ROLES)}")
    try:
        parameters = list(signature_of(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions do not say what they take
        names = {"q": "q", "k": "k", "v": "v", **given}
        return Roles(names, ("q", "k", "v"), ("q", "k", "v"), {}, ())
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) and p.name not in fixed]
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters)
    missing = sorted(set(given.values()) - {p.name for p in plain})
    if missing and not open_ended:
        raise SpecError(f"there is no parameter {missing[0]!r}; the parameters are {', '.join(p.name for p in plain)}")
    if not plain and any(p.kind is p.VAR_POSITIONAL for p in parameters):  # *args alone
        return Roles({"q": "q", "k": "k", "v": "v"}, ("q", "k", "v"), ("q", "k", "v"), {}, ())
    names = _roles_by_name(plain, given)
    _by_position(plain, names)
    back = {parameter: role for role, parameter in names.items()}
    required = [p.name for p in plain if p.default is p.empty]
    strange = [name for name in required if name not in back]
    if strange:
        raise SpecError(
            f"the parameter {strange[0]!r} has no default and its name is not understood; say what it is with "
            f'names="ROLE={strange[0]}" (roles: {", ".join(ROLES)}), or give it a fixed value in MANYHEADS_CHECK'
        )
    positional = tuple(p.name for p in plain if p.kind is p.POSITIONAL_ONLY and p.name in back)
    return Roles(
        names, positional, tuple(back[name] for name in required),
        {back[p.name]: p.default for p in plain if p.name in back and p.default is not p.empty},
        tuple(p.name for p in plain if p.name not in back),
    )  # fmt: skip


def lengths_as_padding(roles: Roles) -> Roles:
    """Valid lengths are a way to say padding, where there is no padding mask."""
    if "lengths" not in roles.names or "padding" in roles.names:
        return roles
    named = {"lengths": "padding"}
    return replace(
        roles, names={named.get(role, role): name for role, name in roles.names.items()},
        required=tuple(named.get(role, role) for role in roles.required),
        defaults={named.get(role, role): value for role, value in roles.defaults.items()},
    )  # fmt: skip


def _roles_by_name(parameters: list[inspect.Parameter], given: Mapping[str, str]) -> dict[str, str]:
    names = dict(given)
    for parameter in parameters:
        role = role_by_name(parameter.name, parameter.default)
        if role is not None and role not in names and parameter.name not in names.values():
            names[role] = parameter.name
    return names


def _by_position(parameters: list[inspect.Parameter], names: dict[str, str]) -> None:
    """q, k and v that no name tells are the first parameters that are nothing else."""
    free = [p.name for p in parameters if p.name not in names.values() and p.kind is not p.KEYWORD_ONLY]
    for role in ("q", "k", "v"):
        if role not in names:
            if not free:
                raise SpecError(
                    f"no parameter for {role} was found among ({', '.join(p.name for p in parameters)}); an attention "
                    'function takes q, k and v: say which with names="q=NAME,k=NAME,v=NAME"'
                )
            names[role] = free.pop(0)
