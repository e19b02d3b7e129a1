"""What attention costs: weights, MACs, bytes, time; closed forms that run on ints, arrays and symbols."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["price"]

_HOMES = {"price": "manyheads.cost.pricing"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
