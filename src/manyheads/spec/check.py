"""Checks of single values, shared by every spec; each message holds what was found and what would be valid."""

from __future__ import annotations

import math
from collections.abc import Iterable

from manyheads.errors import SpecError

__all__ = ["LARGEST_SIZE", "flag", "instance", "number", "one_of", "size"]

# Beyond any real width, vocabulary or context, and small enough that sums over 10,000 layers stay quick and printable.
LARGEST_SIZE = 2**40


def size(name: str, value: object, *, least: int = 1, most: int = LARGEST_SIZE) -> None:
    """Raise unless `value` is an int (not a bool) in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{name} must be an integer of {least} or more, found {value!r}")
    if not least <= value <= most:
        raise SpecError(f"{name} must lie in [{least}, {most}], found {value}")


def number(name: str, value: object, *, zero: bool = False) -> None:
    """Raise unless `value` is a finite number above 0 (or 0 itself where `zero`)."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not usable or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        raise SpecError(f"{name} must be a finite number {'of 0 or more' if zero else 'above 0'}, found {value!r}")


def flag(name: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, found {value!r}")


def one_of(name: str, value: object, valid: Iterable[str]) -> None:
    """Raise unless `value` is one of the strings `valid`."""
    names = tuple(valid)
    if value not in names:
        raise SpecError(f"{name} must be one of {', '.join(names)}; found {value!r}")


def instance(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Raise unless `value` is exactly one of the classes `kinds` (specs are final: no subclass stands in)."""
    if type(value) not in kinds:
        wanted = ", ".join(kind.__name__ for kind in kinds)
        raise SpecError(f"{name} must be one of {wanted}; found {value!r}")
