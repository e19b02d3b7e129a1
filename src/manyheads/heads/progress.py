"""Words about progress."""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Pace"]

_SECONDS_BETWEEN_WORDS = 5.0

Say = Callable[[str], None]


class Pace:
    """Words about progress, but not more often than a person reads them."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self._last = time.perf_counter()

    def _due(self) -> bool:
        now = time.perf_counter()
        if now - self._last < _SECONDS_BETWEEN_WORDS:
            return False
        self._last = now
        return True

    def counted(self, what: str) -> Callable[[int, int], None]:
        """For functions that tell (done, to do)."""

        def told(done: int, total: int) -> None:
            if self._due():
                self.say(f"  {done:,} of {total:,} {what}")

        return told

    def passing(self) -> Callable[[], None]:
        """For one that only tells of each pass, and does not know how many there will be."""
        passes = 0

        def told() -> None:
            nonlocal passes
            passes += 1
            if self._due():
                self.say(f"  {passes:,} passes")

        return told
