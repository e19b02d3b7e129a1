"""An object of the user's class, for the sizes that are asked."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from manyheads.errors import SpecError

__all__ = ["BUILT", "SMALL", "Plan", "Wanted", "plan_of", "role_of"]

BUILT: dict[str, tuple[str, ...]] = {
    "d_model": (
        "d_model", "embed_dim", "embedding_dim", "emb_dim", "emb_size", "embed_size", "embedding_size", "hidden_size",
        "hidden_dim", "n_embd", "n_embed", "dim", "model_dim", "dim_model", "d", "d_in", "in_dim", "input_dim", "dim_in",
        "num_hiddens", "width", "channels", "in_features", "emb", "embed", "n_state", "features", "units", "dmodel",
        "query_size", "key_size", "value_size", "q_dim",
    ),
    "heads": (
        "num_heads", "n_heads", "n_head", "nhead", "heads", "h", "num_attention_heads", "nheads", "n_attention_heads",
        "head", "num_head", "head_num", "nb_heads", "num_query_heads", "n_q_heads",
    ),
    "kv_heads": (
        "num_kv_heads", "n_kv_heads", "n_kv_head", "kv_heads", "num_key_value_heads", "kv_num_heads", "num_kv_groups",
        "n_kv", "num_query_groups", "n_query_groups", "n_groups", "num_groups", "kv_groups",
    ),
    "head_dim": (
        "head_dim", "dim_head", "d_head", "d_k", "dk", "head_size", "size_per_head", "attention_head_size", "qk_dim",
        "key_dim", "d_v", "dv", "value_dim", "v_head_dim",
    ),
    "d_out": ("d_out", "out_dim", "output_dim", "dim_out", "out_features", "output_size", "out"),
    "temperature": ("temperature", "scale_factor"),
    "scale": ("scale", "scaling", "softmax_scale"),
    "dropout": (
        "dropout", "dropout_p", "p_dropout", "attn_dropout", "attention_dropout", "drop", "p", "dropout_rate", "drop_rate",
        "attn_pdrop", "resid_pdrop", "proj_drop", "attn_drop", "resid_dropout", "dropout_prob", "pdrop",
        "attention_probs_dropout_prob", "hidden_dropout_prob", "residual_dropout",
    ),
    "bias": ("bias", "qkv_bias", "use_bias", "add_bias", "attention_bias", "attn_bias", "out_bias", "proj_bias"),
    "max_len": (
        "context_length", "block_size", "max_len", "max_length", "max_seq_len", "max_seq_length", "seq_len", "seq_length",
        "context_size", "context_window", "n_ctx", "ctx_len", "max_position_embeddings", "max_tokens", "max_sequence_length",
        "sequence_length",
    ),
    "causal": ("causal", "is_causal", "masked", "mask", "autoregressive", "unidirectional", "use_causal_mask"),
    "batch": ("max_batch_size", "batch_size", "max_batch"),
    "batch_first": ("batch_first",),
    "layer": ("layer_idx", "layer_id", "layer"),
    "config": (
        "config", "cfg", "args", "conf", "hparams", "params", "model_args", "configuration", "model_config", "opt", "hp",
    ),
}  # fmt: skip
"""Role in a constructor -> the names it goes by, in lower case."""

_ROLE_OF = {name: role for role, names in BUILT.items() for name in names}
# where no name is known as a whole: the first whose words are all in it
_BY_WORDS = (
    ("kv_heads", ("kv|key_value|groups?", "num|n|heads?|groups?|count")),
    ("head_dim", ("heads?", "dim|size|width|d|channels?")),
    ("heads", ("heads?",)),
    ("dropout", ("drop|dropout|prob|rate",)),
    ("max_len", ("len|length|context|ctx|block|seq|positions?|tokens",)),
    ("bias", ("bias",)),
    ("d_model", ("emb|embed|embd|embedding|model|hidden|dim|dims|width|size|channels|features|e|d",)),
)


def role_of(name: str) -> str | None:
    """What a name in a constructor or a configuration means: known as a whole, else by its words; None where neither."""
    known = _ROLE_OF.get(name.lower())
    if known is not None:
        return known
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    told = [word.lower() for word in words]
    for role, needed in _BY_WORDS:
        if all(any(re.fullmatch(pattern, word) for word in told) for pattern in needed):
            return role
    return None


_OF_GLOBALS = ("d_model", "heads", "kv_heads", "head_dim", "dropout", "bias", "max_len", "batch")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The sizes of an object, and its switches."""

    d_model: int
    heads: int
    kv_heads: int
    head_dim: int
    max_len: int = 16
    batch: int = 2
    causal: bool = False
    dropout: float = 0.0

    def value(self, role: str) -> Any:
        """What a constructor's parameter of that role is given."""
        others = {
            "d_out": self.d_model, "bias": True, "batch_first": True, "layer": 0,
            "temperature": self.head_dim**0.5, "scale": self.head_dim**-0.5,
        }  # fmt: skip
        return getattr(self, role) if role in self.__dataclass_fields__ else others[role]


SMALL = Wanted(d_model=12, heads=2, kv_heads=2, head_dim=6)
"""An object to look at."""


class _Config:
    """Answers for every spelling of the sizes, as an attribute and as an item."""

    def __init__(self, wanted: Wanted, asked: dict[str, Any]) -> None:
        self._wanted, self._asked = wanted, asked

    def __getattr__(self, name: str) -> Any:
        if name == "_attn_implementation":  # what transformers' modules ask
            return "eager"
        role = role_of(name)
        if name.startswith("_") or role in (None, "config", "temperature", "scale"):
            raise AttributeError(f"{name!r}, asked of the configuration, is not understood")
        assert role is not None
        self._asked[name] = self._wanted.value(role)
        return self._asked[name]

    def __getitem__(self, name: str) -> Any:
        self._asked["as a dict"] = True
        try:
            return getattr(self, name)
        except AttributeError as error:
            raise KeyError(str(error)) from error

    def __contains__(self, name: str) -> bool:
        return hasattr(self, name)

    def get(self, name: str, default: Any = None) -> Any:
        """As of a dict."""
        return getattr(self, name, default)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a class is made: role -> its constructor's parameters, and role -> global names of its file.

    `fixed`: parameters with one value always. `configured`: what a configuration was last asked for, name -> value.
    """

    cls: Callable[..., Any]
    parameters: Mapping[str, tuple[str, ...]]
    world: Mapping[str, tuple[str, ...]]
    module: ModuleType
    fixed: Mapping[str, Any]
    configured: dict[str, Any] = field(default_factory=dict)

    @property
    def takes(self) -> frozenset[str]:
        """The roles that it can be told."""
        return frozenset({*self.parameters, *self.world, *(BUILT if "config" in self.parameters else ())})

    def arguments(self, wanted: Wanted) -> dict[str, Any]:
        """parameter -> value."""
        given = {
            name: _Config(wanted, self.configured) if role == "config" else wanted.value(role)
            for role, names in self.parameters.items() for name in names
        }  # fmt: skip
        return {**given, **self.fixed}

    def set_world(self, wanted: Wanted) -> None:
        """Sets the global names of the file that stand for sizes."""
        for role, names in self.world.items():
            for name in names:
                setattr(self.module, name, wanted.value(role))

    def make(self, wanted: Wanted) -> Any:
        """The object; whatever its constructor raises."""
        self.set_world(wanted)
        return self.cls(**self.arguments(wanted))


def plan_of(cls: Callable[..., Any], module: ModuleType, names: Mapping[str, str], fixed: Mapping[str, Any]) -> Plan:
    """How `cls` is made; `names`: role -> parameter as told. SpecError for a parameter that is needed and not understood."""
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    told = {name: role for role, name in names.items() if role in BUILT}
    found: dict[str, tuple[str, ...]] = {}
    by_place = _by_place([p for p in parameters if p.name not in told and p.name not in fixed])
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or parameter.name in fixed:
            continue
        role = told.get(parameter.name) or _ROLE_OF.get(parameter.name.lower()) or by_place.get(parameter.name)
        role = role or (role_of(parameter.name) if parameter.default is parameter.empty else None)
        if role is not None and _is_given(role, parameter):
            found[role] = (*found.get(role, ()), parameter.name)
        elif parameter.default is parameter.empty:
            raise SpecError(
                f"the constructor's parameter {parameter.name!r} has no default and its name is not understood; say what it is "
                f'with names="ROLE={parameter.name}" (roles: {", ".join(BUILT)}), or give it a fixed value in MANYHEADS_CHECK'
            )
    fitting = {name: value for name, value in fixed.items() if any(p.name == name for p in parameters)}
    return Plan(cls=cls, parameters=found, world=_world(module, found), module=module, fixed=fitting)


def _by_place(parameters: list[inspect.Parameter]) -> dict[str, str]:
    """A width and a number of heads that no name tells, where nothing else is needed: in this order."""
    roles = [role_of(p.name) for p in parameters]
    unknown = [p.name for p, role in zip(parameters, roles, strict=True) if role is None and p.default is p.empty
               and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]  # fmt: skip
    missing = [role for role in ("d_model", "heads") if role not in roles]
    return dict(zip(unknown, missing, strict=True)) if len(unknown) == len(missing) and "config" not in roles else {}


def _is_given(role: str, parameter: inspect.Parameter) -> bool:
    """Whether a parameter is told its value, or left with its default."""
    if parameter.default is parameter.empty:
        return True
    if role == "causal":
        return isinstance(parameter.default, bool)
    if role in ("bias", "temperature", "scale", "layer", "d_out"):
        return False
    return not (role == "dropout" and isinstance(parameter.default, bool))


def _world(module: ModuleType, found: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Names of the file that stand for a size which the constructor is not told: n_embd = 384 at its top."""
    if "config" in found:
        return {}
    made: dict[str, tuple[str, ...]] = {}
    for name, value in vars(module).items():
        role = _ROLE_OF.get(name.lower())
        if role in _OF_GLOBALS and role not in found and type(value) in (int, float) and len(name) > 1:
            made[role] = (*made.get(role, ()), name)
    return made
