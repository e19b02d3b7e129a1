"""What a measurement did not use of what it was given, and why: nothing is left out that reports do not tell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["LeftOut", "NotMeasured", "left_out_notes", "present"]


@dataclass(frozen=True)
class LeftOut:
    """What was given and not used: `count` of the `of` `what` ("sentences") that were given, and why."""

    what: str
    count: int
    of: int
    why: str


@dataclass(frozen=True)
class NotMeasured:
    """In the place of what could not be had."""

    reason: str
    """why"""


def present(*found: LeftOut) -> tuple[LeftOut, ...]:
    """Those of which there are any."""
    return tuple(one for one in found if one.count)


def left_out_notes(found: Iterable[LeftOut]) -> list[str]:
    """A line for each."""
    return [f"left out: {one.count:,} of {one.of:,} {one.what}: {one.why}" for one in found]
