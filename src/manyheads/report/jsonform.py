"""A report as JSON: exact integers, keys in the order in which the report holds them, one line break at the end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.report.value import Report

__all__ = ["dumps", "encode", "finite"]


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


def finite(value: float) -> float | None:
    """A number as JSON can say it: None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def _check(value: object, path: str) -> None:
    if value is None or isinstance(value, str | bool | int):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}, which JSON cannot hold")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"{path} has the key {key!r}, and the keys of a JSON object are texts")
            _check(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{path}[{index}]")
    else:
        raise TypeError(f"{path} is a {type(value).__name__}, which JSON cannot hold")
