"""Signals that end a program, told as exceptions: what was begun is tidied up on the way out."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

__all__ = ["Stopped", "stopped_by_signals"]

_NAMES = ("SIGTERM", "SIGHUP")  # an interrupt is Python's KeyboardInterrupt


class Stopped(BaseException):
    """A signal asked the program to end; `number` is the signal's. No Exception: nothing may handle it on the way."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _stop(number: int, _frame: object) -> None:
    raise Stopped(number)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Inside, a signal to end raises Stopped. Signals that are ignored (nohup) or handled by whoever called us stay theirs."""
    before = {}
    with contextlib.suppress(ValueError):  # only the main thread may say what signals do
        for name in _NAMES:
            number = getattr(signal, name, None)  # Windows has one of them
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
