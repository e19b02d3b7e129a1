"""Rotary positions out of a configuration: `rope_theta` + `rope_scaling`, or transformers 5's `rope_parameters`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from manyheads.checkpoints.draft import CHUNKED, FULL, KINDS, SLIDING, Draft
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.fields import TURNED, Fields
from manyheads.quoting import shown
from manyheads.spec.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    NoScaling,
    Positions,
    Rope,
    RopeScaling,
    YarnScaling,
)

__all__ = ["read_rope", "yarn_scale_factor"]

_PLAIN = ("", "default", "mrope", "none")
_WHOLE = "does not read it and turns whole heads"


def read_rope(fields: Fields, draft: Draft, family: Family, width: int) -> dict[str, Positions]:
    """The rotary embedding of each kind of layer, for heads (or rotary keys) of `width`."""
    found = _by_kind(fields, draft, family, width)
    rotated = next((each.dim for each in found.values() if isinstance(each, Rope)), 0)
    _check_others(fields, draft, family, width, rotated)
    return found


def _by_kind(fields: Fields, draft: Draft, family: Family, width: int) -> dict[str, Positions]:
    fields.raw("original_context")
    given = fields.object("rope_parameters")
    old = fields.object("rope_scaling")
    # transformers takes rope_scaling, where it says something, over rope_parameters
    parameters = old or given or {}
    theta = fields.number("rope_theta", 10000.0) or 10000.0
    local = fields.number("local_rope_theta")
    nested = {kind: value for kind, value in parameters.items() if kind in KINDS}
    if not nested:
        full = _rope(fields, draft, family, parameters, theta, width)
        found: dict[str, Positions] = {FULL: full, CHUNKED: full, SLIDING: full}
        if local is not None:  # Gemma 3: windowed layers have a base of their own, and no scaling
            found[SLIDING] = _rope(fields, draft, family, {}, local, width)
        return found
    found = {}
    for kind, value in nested.items():
        if value is None:
            found[kind] = NoPositions()
            continue
        if not isinstance(value, Mapping):
            fields.fail(f"rope_parameters.{kind} must be an object, found {shown(value)}")
        base = local if kind == SLIDING and local is not None else theta
        found[kind] = _rope(fields, draft, family, value, base, width)
    return found


def _rope(
    fields: Fields, draft: Draft, family: Family, parameters: Mapping[str, Any], theta: float, width: int
) -> Positions:
    base = fields.as_number("rope_theta", parameters.get("rope_theta")) or theta
    fraction = fields.as_number("partial_rotary_factor", parameters.get("partial_rotary_factor"), zero=True)
    if fraction is not None and fraction != 1 and not family.rope_share and family.name != "generic":
        draft.add_unsupported(
            "rope_parameters.partial_rotary_factor", fraction, f"transformers' class of {family.name} {_WHOLE}"
        )
        fraction = None
    if fraction is None:
        fraction = fields.number("rope_fraction", 1.0, zero=True)
    dim = fields.optional_size("rope_dim", least=0)
    if dim is None:
        share = 1.0 if fraction is None else fraction
        if share > 1:
            fields.fail(f"{fields.key('rope_fraction')} must lie in [0, 1], found {share:g}")
        dim = _share(width, share)
    if not dim:
        return NoPositions()
    layout = family.rope_layout
    if fields.has("rope_interleave"):
        layout = "interleaved" if fields.flag("rope_interleave") else "halves"
    return Rope(dim, base, layout, _scaling(fields, draft, parameters))


def _share(width: int, share: float) -> int:
    """The elements that are rotated; an odd number of them is rounded up to whole pairs."""
    dim = int(width * share)
    return dim + (dim % 2 if dim < width else 0)


def _check_others(fields: Fields, draft: Draft, family: Family, width: int, dim: int) -> None:
    """Keys that the class does not read must say what it does."""
    for field in TURNED:
        for key in fields.others(field, fields.names(field)):
            value = fields.config[key]
            said = fields.as_number(key, value, zero=True) or 0.0
            if field == "rope_fraction" and said > 1:
                fields.fail(f"{key} must lie in [0, 1], found {said:g}")
            if (said if field == "rope_dim" else _share(width, said)) != dim:
                whole = _WHOLE if dim == width else f"does not read it and turns {dim} of {width} elements"
                draft.add_unsupported(key, value, f"transformers' class of {family.name} {whole}")


def _scaling(fields: Fields, draft: Draft, parameters: Mapping[str, Any]) -> RopeScaling:
    kind = parameters.get("rope_type", parameters.get("type"))
    if kind is None or kind in _PLAIN:
        return NoScaling()
    if not isinstance(kind, str):
        fields.fail(f"rope_scaling.rope_type must be a word, found {shown(kind)}")

    def number(name: str, default: float | None = None, *, zero: bool = False) -> float:
        value = fields.as_number(f"rope_scaling.{name}", parameters.get(name), zero=zero)
        value = default if value is None else value
        if value is None:
            fields.fail(f"rope_scaling of type {kind} needs {name}, a number above 0; it is absent")
        return value

    if kind == "linear":
        return LinearScaling(number("factor"))
    if kind == "dynamic":
        return DynamicScaling(number("factor"), _context(fields, draft, parameters))
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        return Llama3Scaling(number("factor"), low, high, _context(fields, draft, parameters))
    if kind == "yarn":
        original = _context(fields, draft, parameters)
        truncate = parameters.get("truncate")
        return YarnScaling(
            number("factor", draft.context / original if draft.context else None), original,
            beta_fast=number("beta_fast", 32.0), beta_slow=number("beta_slow", 1.0),
            mscale=number("mscale", 0.0, zero=True), mscale_all_dim=number("mscale_all_dim", 0.0, zero=True),
            attention_factor=number("attention_factor", 0.0, zero=True), truncate=truncate is not False,
        )  # fmt: skip
    if kind in ("longrope", "su"):
        short, long = (_factors(fields, parameters, name) for name in ("short_factor", "long_factor"))
        original = _context(fields, draft, parameters)
        return LongRopeScaling(original, short, long, number("attention_factor", 0.0, zero=True))
    draft.add_unsupported(
        "rope_scaling.rope_type", kind, "types that are understood: linear, dynamic, yarn, longrope, llama3"
    )
    return NoScaling()


def _context(fields: Fields, draft: Draft, parameters: Mapping[str, Any]) -> int:
    """The context before stretching: beside the rotary parameters (Phi-3) or among them, else the model's own."""
    found = fields.optional_size("original_context")
    if found is None:
        found = parameters.get("original_max_position_embeddings") or draft.context
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        fields.fail(f"original_max_position_embeddings must be an integer of 1 or more, found {shown(found)}")
    return found


def _factors(fields: Fields, parameters: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = parameters.get(name)
    if not isinstance(values, list | tuple) or not values:
        fields.fail(f"rope_scaling of type longrope needs {name}, a list of numbers; found {shown(values)}")
    return tuple(fields.as_number(f"rope_scaling.{name}", value) or 0.0 for value in values)


def yarn_scale_factor(positions: Positions) -> float:
    """What YaRN multiplies MLA's softmax scale with: (0.1 · mscale_all_dim · ln(factor) + 1)^2, 1 without mscale_all_dim.

    The factor on cos and sin is another one, and 1 where mscale equals mscale_all_dim (case O96).
    """
    if not isinstance(positions, Rope) or not isinstance(positions.scaling, YarnScaling):
        return 1.0
    yarn = positions.scaling
    if not yarn.mscale_all_dim or yarn.factor <= 1:
        return 1.0
    return (0.1 * yarn.mscale_all_dim * math.log(yarn.factor) + 1.0) ** 2
