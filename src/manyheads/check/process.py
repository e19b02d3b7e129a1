"""Our side of the processes that run the user's code: messages with a limit in time, what was printed, and their end."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from manyheads.check.channel import CLOSED, Frames, new_token
from manyheads.check.warden import PATIENCE

__all__ = ["GoneError", "Printed", "Process"]

MOST_PRINTED = 10_000_000  # bytes that are kept; the rest is read and forgotten, so that nobody waits for us
_LAST = 8_192  # bytes at the end that are kept in any case


class GoneError(Exception):
    """The process ended, or did not answer in time; the text says which, `ended` whether it has."""

    def __init__(self, message: str, *, ended: bool) -> None:
        super().__init__(message)
        self.ended = ended


class Printed:
    """What the user's code wrote to standard output and error, of all processes of a check."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0

    def add(self, data: bytes) -> None:
        """Keeps it as far as there is room."""
        self._kept += data[: max(MOST_PRINTED - len(self._kept), 0)]
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= _LAST:
            self._tail_size -= len(self._tail.popleft())

    def text(self) -> str:
        """All that is kept."""
        return self._kept.decode("utf-8", "replace")

    def last_line(self) -> str:
        """The last line that says something, or ""."""
        lines = b"".join(self._tail).decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class Process:
    """A warden and the worker below it. `stop` must be called: it ends both, and whatever the user's code started."""

    def __init__(self, request: Mapping[str, Any], printed: Printed) -> None:
        token = new_token()
        # the warden makes it, so that there is never a folder without one who removes it
        self._folder = os.path.join(tempfile.gettempdir(), f"manyheads-check-{new_token()[:12]}")
        self._frames = Frames(token)
        self._messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._warden = subprocess.Popen(
            # -P: modules of the folder that we stand in must not stand for Python's
            [sys.executable, "-P", "-c", "from manyheads.check.warden import main; main()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self._listen, daemon=True),
            threading.Thread(target=self._drain, args=(printed,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        assert self._warden.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what ended it is told by `next`
            self._warden.stdin.write(json.dumps({**request, "token": token, "folder": self._folder}).encode() + b"\n")
            self._warden.stdin.flush()

    @property
    def strange(self) -> int:
        """Bytes on the channel of answers that were none."""
        return self._frames.strange

    def next(self, seconds: float) -> dict[str, Any]:
        """The next message. GoneError where none comes in time, or the process has ended."""
        try:
            message = self._messages.get(timeout=seconds)
        except queue.Empty:
            raise GoneError(f"no answer within {seconds:g} s", ended=False) from None
        if message is None:
            raise GoneError("the process ended", ended=True)
        if "ended" in message:
            raise GoneError(_how(message["ended"]), ended=True)
        return message

    def stop(self) -> None:
        """Ends everything, within seconds, and removes its folder."""
        assert self._warden.stdin is not None
        with contextlib.suppress(OSError):
            self._warden.stdin.close()
        try:
            self._warden.wait(2 * PATIENCE)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                if hasattr(os, "killpg"):
                    os.killpg(self._warden.pid, signal.SIGKILL)
            self._warden.kill()
            self._warden.wait()
        until = time.monotonic() + 1.0
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        for stream, thread in zip((self._warden.stdout, self._warden.stderr), self._threads, strict=True):
            if stream is not None and not thread.is_alive():
                stream.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self) -> None:
        assert self._warden.stdout is not None
        for data in _pieces(self._warden.stdout.fileno()):
            for message in self._frames.feed(data):
                self._messages.put(message)
        self._messages.put(None)

    def _drain(self, printed: Printed) -> None:
        assert self._warden.stderr is not None
        for data in _pieces(self._warden.stderr.fileno()):
            printed.add(data)


def _pieces(descriptor: int) -> Any:
    with contextlib.suppress(OSError):
        while data := os.read(descriptor, 65_536):
            yield data


def _how(status: int) -> str:
    if status == 0:
        return "the process ended"
    if status == CLOSED:
        return "the file closed the channel of answers"
    if status > 0:
        return f"the process ended with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"the process ended with the signal {signal.Signals(-status).name}"
    return f"the process ended with the signal {-status}"
