"""What is refused, as data: settings that make a described family another kind of model, and kinds that nothing describes."""

from __future__ import annotations

import json
import os
from functools import cache
from typing import TYPE_CHECKING, Any

from manyheads.checkpoints.draft import UnsupportedSetting

if TYPE_CHECKING:
    from manyheads.checkpoints.family import Family
    from manyheads.checkpoints.fields import Fields

__all__ = ["left_out", "misleading", "refused_settings"]


@cache
def _model_types() -> dict[str, dict[str, str]]:
    with open(os.path.join(os.path.dirname(__file__), "model_types.json"), encoding="utf-8") as file:
        told: dict[str, dict[str, list[str]]] = json.load(file)
    return {part: {name: why for why, names in rows.items() for name in names} for part, rows in told.items()}


def misleading() -> dict[str, str]:
    """`model_type` values whose fields would be read as another kind's, and what is different in them."""
    return _model_types()["misleading"]


def left_out() -> dict[str, str]:
    """Those that the shared readers price but for less than a thousandth, and what is left out."""
    return _model_types()["left_out"]


def refused_settings(fields: Fields, family: Family) -> list[UnsupportedSetting]:
    """The settings of `Family.refused` that are not what they must be; those of `Family.passed_over` count as read."""
    for key in family.passed_over:
        fields.raw(key)
    found = []
    for key, usual, why in family.refused:
        value = _read(fields, key, usual)
        if value != usual:
            found.append(UnsupportedSetting(key, str(value).lower() if isinstance(usual, bool) else value, why))
    return found


def _read(fields: Fields, key: str, usual: Any) -> Any:
    """The value, checked to be of the kind that `usual` is; any value that says something where that is None."""
    if isinstance(usual, bool):
        return fields.flag(key, default=usual)
    if isinstance(usual, str):
        return fields.word(key, usual) or usual
    if isinstance(usual, float):
        return fields.number(key, usual, zero=True)
    return fields.raw(key) or None
