"""What a form or a backend answers when asked whether it can do a call: yes, or no with the reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Answer", "No", "Yes"]


@dataclass(frozen=True)
class Yes:
    """It computes the function that was asked for."""

    def __bool__(self) -> bool:
        return True


class No:
    """It does not, and `reason` says why: a text, with values for its braces.

    They are put together when somebody reads it. Most answers are asked for and dropped; and while torch.compile traces,
    sizes are symbols, which become constants of the graph once they are written into a text.
    """

    def __init__(self, text: str, *values: object) -> None:
        self._text, self._values = text, values

    @property
    def reason(self) -> str:
        """Why not, with the numbers."""
        return self._text.format(*self._values) if self._values else self._text

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"No({self.reason!r})"


Answer = Yes | No
