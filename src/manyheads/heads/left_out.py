"""What a measurement did not use of what it was given, and why: nothing is left out that reports do not tell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LeftOut", "left_out_notes", "present"]


@dataclass(frozen=True)
class LeftOut:
    """`count` of the `of` `what` ("sentences") that were given."""

    what: str
    count: int
    of: int
    why: str

    def as_json(self) -> dict[str, Any]:
        """The same for JSON."""
        return {"what": self.what, "count": self.count, "of": self.of, "why": self.why}


def present(*found: LeftOut) -> tuple[LeftOut, ...]:
    """Those of which there are any."""
    return tuple(one for one in found if one.count)


def left_out_notes(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each row of `as_json`."""
    return [f"left out: {row['count']:,} of {row['of']:,} {row['what']}: {row['why']}" for row in rows]
