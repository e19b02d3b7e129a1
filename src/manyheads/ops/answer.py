"""What a form or a backend answers when asked whether it can do a call: yes, or no with the reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Answer", "No", "Yes"]


@dataclass(frozen=True)
class Yes:
    """It computes the function that was asked for."""

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True)
class No:
    """It does not, and `reason` says why."""

    reason: str

    def __bool__(self) -> bool:
        return False


Answer = Yes | No
