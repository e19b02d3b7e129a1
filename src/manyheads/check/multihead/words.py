"""Which weight a name means."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import permutations

__all__ = ["Meaning", "meaning_of", "meaning_of_path", "orders_of"]

_ROLES = {
    "q": ("q", "qs", "query", "queries"),
    "k": ("k", "ks", "key", "keys"),
    "v": ("v", "vs", "val", "value", "values"),
    "o": (
        "o", "out", "output", "outputs", "concat", "unify", "unifyheads", "combine", "combined", "final", "merge", "join", "mix",
    ),
    **{"".join(order): ("".join(order),) for count in (2, 3) for order in permutations("qkv", count)},
}  # fmt: skip
_ROLE_OF = {word: role for role, words in _ROLES.items() for word in words}

# only where nothing else in the name says what it is
_VAGUE = {
    "proj": "o", "projection": "o", "dense": "o", "fc": "o", "linear": "o", "lin": "o", "attn": "qkv", "in": "qkv",
    "packed": "qkv", "fused": "qkv",
}  # fmt: skip
_WEIGHT = (
    "w",
    "weight",
    "weights",
    "kernel",
    "matrix",
    "mat",
    "proj",
    "projection",
    "linear",
    "lin",
    "to",
    "fc",
    "dense",
)
_BIAS = ("b", "bias", "biases")
_OTHERS = (
    "norm",
    "ln",
    "rope",
    "rotary",
    "rel",
    "relative",
    "pos",
    "position",
    "mask",
    "cache",
    "heads",
    "head",
    "dim",
    "size",
)
_GLUED = re.compile(
    rf"(?P<before>w|b|to|c|fc|lin|linear|proj|weight|bias)?(?P<role>{'|'.join(sorted(_ROLE_OF, key=len, reverse=True))})"
    r"(?P<after>w|b|proj|lin|linear|weight|weights|bias|s)?"
)


@dataclass(frozen=True)
class Meaning:
    """`role`: q, k, v, o, or several in one, in their order (qkv, kv); `is_bias`; `says_weight`: whether the name says
    that it is a weight or a bias, as w_q does and q does not; `is_vague`: whether only the habit says which one, as of c_proj.
    """

    role: str
    is_bias: bool = False
    says_weight: bool = False
    is_vague: bool = False


def meaning_of(name: str) -> Meaning | None:
    """What a parameter's name means, or None: w_q, Wq, q_proj, to_queries, b_v, in_proj_weight, out ..."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    if any(word in _OTHERS for word in words):
        return None
    roles, vague = [], []
    is_bias = says_weight = False
    for word in words:
        if word in _BIAS or word in _WEIGHT:
            is_bias |= word in _BIAS
            says_weight = True
            vague += [_VAGUE[word]] if word in _VAGUE else []
        elif word in _ROLE_OF:
            roles.append(_ROLE_OF[word])
        elif glued := _GLUED.fullmatch(word):
            roles.append(_ROLE_OF[glued["role"]])
            around = {glued["before"], glued["after"]} - {None, "s", "c"}
            is_bias |= bool(around & set(_BIAS))
            says_weight |= bool(around)
        elif word in _VAGUE:
            vague.append(_VAGUE[word])
    fused = "".join(roles)
    if len(roles) > 1 and fused in _ROLE_OF:  # query_key_value
        return Meaning(fused, is_bias, says_weight)
    if len(set(roles)) == 1:
        return Meaning(roles[0], is_bias, says_weight)
    if not roles and vague:
        role = "qkv" if "qkv" in vague else "o"  # in_proj, c_attn
        return Meaning(role, is_bias, says_weight, is_vague=True)
    return None


def orders_of(role: str) -> tuple[str, ...]:
    """The orders in which several in one may lie: as the name spells them, and as everyone writes them."""
    usual = "".join(letter for letter in "qkv" if letter in role)
    return (role,) if len(role) == 1 or role == usual else (role, usual)


def meaning_of_path(path: str) -> Meaning | None:
    """The same of a parameter inside a module: attention.q_proj.weight, heads.0.key.weight, to_out.0.bias."""
    parts = [part.strip("'\"]") for part in re.split(r"[.\[]", path) if not part.isdecimal()]
    if any("norm" in part.lower() or part.lower().startswith("ln") for part in parts):
        return None
    last = parts[-1] if parts else ""
    is_bias = last.lower() in _BIAS or last.lower().endswith("bias")
    inner = parts[:-1] if last.lower() in (*_BIAS, "weight", "kernel") and len(parts) > 1 else parts
    vague = None
    for part in reversed(inner):
        meaning = meaning_of(part)
        if meaning is not None:
            meaning = replace(meaning, is_bias=is_bias or meaning.is_bias, says_weight=True)
            if not meaning.is_vague:
                return meaning
            vague = vague or meaning
    return vague
