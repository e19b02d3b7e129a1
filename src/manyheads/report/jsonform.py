"""A report as JSON: exact integers, keys in the order in which the report holds them, one line break at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.report.value import Report

__all__ = ["NOT_IN_JSON", "WHERE_ASKED", "as_json", "dumps", "encode", "key"]

_KEY = "json"
# The metadata of a field (`dataclasses.field`) that is not simply the value of the key of its name.
WHERE_ASKED: Mapping[str, object] = MappingProxyType({_KEY: ""})
"""The key is there only where the field is not None."""
NOT_IN_JSON: Mapping[str, object] = MappingProxyType({_KEY: None})
"""For Python alone: there is no key."""


def key(name: str) -> Mapping[str, object]:
    """The metadata of a field whose key is a word that Python keeps for itself, such as "class"."""
    return {_KEY: name}


def as_json(value: Any) -> Any:
    """`value` as JSON holds it: a record as an object with its fields in order, NaN and infinities as None, tuples as lists."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if is_dataclass(value):
        made = {}
        for each in fields(value):
            name, own = each.metadata.get(_KEY, each.name), getattr(value, each.name)
            if name is not None and (name or own is not None):
                made[name or each.name] = as_json(own)
        return made
    if isinstance(value, Mapping):
        return {name: as_json(each) for name, each in value.items()}
    return [as_json(each) for each in value] if isinstance(value, list | tuple) else value


def dumps(report: Report) -> str:
    """The `data` of a report as a JSON text that ends with a line break."""
    return encode(report.data)


def encode(data: Mapping[str, object], *, compact: bool = False) -> str:
    """`data` as indented JSON in ASCII, so that it survives any terminal and any pipe; `compact`: on one line, for pages.

    Raises ValueError on what JSON cannot say (NaN, infinities, keys that are not text) and TypeError on what is not
    JSON at all, both with the path to it: they would be bugs of ours, and a file with NaN in it fails far from here.
    """
    _check(data, "data")
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    return json.dumps(data, ensure_ascii=True, allow_nan=False, **layout) + "\n"


def _check(value: object, path: str) -> None:
    if value is None or isinstance(value, str | bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}, which JSON cannot hold")
    elif isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(name, str):
                raise ValueError(f"{path} has the key {name!r}, and the keys of a JSON object are texts")
            _check(item, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]")
    else:
        raise TypeError(f"{path} is a {type(value).__name__}, which JSON cannot hold")
