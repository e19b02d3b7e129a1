"""Checks of single values, shared by every spec; each message holds what was found and what would be valid."""

from __future__ import annotations

import math
from collections.abc import Iterable

from manyheads.errors import SpecError
from manyheads.quoting import shown

__all__ = ["LARGEST_SIZE", "flag", "instance", "number", "one_of", "row", "size", "text"]

# Beyond any real width, vocabulary or context, and small enough that sums over 10,000 layers stay quick and printable.
LARGEST_SIZE = 2**40


def size(name: str, value: object, *, least: int = 1, most: int = LARGEST_SIZE) -> None:
    """Raise unless `value` is an int (not a bool) in [least, most]."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SpecError(f"{name} must be an integer of {least} or more, found {shown(value)}")
    if not least <= value <= most:
        raise SpecError(f"{name} must lie in [{least}, {most}], found {shown(value)}")


def number(name: str, value: object, *, zero: bool = False) -> None:
    """Raise unless `value` is a finite number above 0 (or 0 itself where `zero`)."""
    usable = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value)
    if not usable or value < 0 or (value == 0 and not zero):  # type: ignore[operator]
        raise SpecError(f"{name} must be a finite number {'of 0 or more' if zero else 'above 0'}, found {shown(value)}")


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an int beyond the largest float
        return False


def flag(name: str, value: object) -> None:
    """Raise unless `value` is True or False."""
    if not isinstance(value, bool):
        raise SpecError(f"{name} must be true or false, found {shown(value)}")


def one_of(name: str, value: object, valid: Iterable[str]) -> None:
    """Raise unless `value` is one of the strings `valid`."""
    names = tuple(valid)
    if value not in names:
        raise SpecError(f"{name} must be one of {', '.join(names)}; found {shown(value)}")


def text(name: str, value: object) -> None:
    """Raise unless `value` is a string with something in it."""
    if not isinstance(value, str) or not value:
        raise SpecError(f"{name} must be a string with at least one character, found {shown(value)}")


def row(name: str, value: object) -> None:
    """Raise unless `value` is a tuple: a list could change and cannot be hashed."""
    if type(value) is not tuple:
        raise SpecError(f"{name} must be a tuple, found {shown(value)}")


def instance(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Raise unless `value` is exactly one of the classes `kinds` (specs are final: no subclass stands in)."""
    if type(value) not in kinds:
        wanted = ", ".join(kind.__name__ for kind in kinds)
        raise SpecError(f"{name} must be one of {wanted}; found {shown(value)}")
