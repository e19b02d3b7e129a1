"""The process between ours and the one that runs the user's code: it ends that one and everything that it started.

It runs no code of the user, holds no torch, and lives as long as its standard input: when the command is done, or was
killed itself, the input ends, and so do the user's processes and their folder for temporary files. Processes that a
function leaves behind, in a session of their own too, become its children (Linux; elsewhere the session is ended).
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from manyheads.check.channel import send

__all__ = ["main"]

PATIENCE = 5.0  # seconds in which killed processes are gone; one that waits for a broken disk may not be
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h


def main() -> None:
    """Starts the process that answers the request on standard input, and says how it ended."""
    request = json.loads(sys.stdin.readline())
    _adopt_orphans()
    _no_core()
    os.mkdir(request["folder"], 0o700)
    worker = subprocess.Popen(
        [sys.executable, "-P", "-c", "from manyheads.check.worker import main; main()"], stdin=subprocess.PIPE,
        env={**os.environ, "TMPDIR": request["folder"]}, start_new_session=True,
    )  # fmt: skip
    threading.Thread(target=_end_with_input, args=(worker, request["folder"]), daemon=True).start()
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(request).encode() + b"\n")
        worker.stdin.close()
    status = worker.wait()
    _end(worker.pid)
    with contextlib.suppress(OSError):
        send(1, request["token"], {"ended": status})
    _leave(worker.pid, request["folder"])


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def _no_core() -> None:
    """A crash leaves no file of the process's memory."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end_with_input(worker: subprocess.Popen[bytes], folder: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stdin.read()
    _leave(worker.pid, folder)


def _leave(worker: int, folder: str) -> None:
    _end(worker)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _end(worker: int) -> None:
    """Kills the user's process, its session, and all that descends from us."""
    until = time.monotonic() + PATIENCE
    _kill_session(worker)
    while time.monotonic() < until:
        left = _descendants()
        if not left:
            return
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
        _reap()
        time.sleep(0.005)


def _kill_session(worker: int) -> None:
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(worker, signal.SIGKILL)
        else:
            os.kill(worker, signal.SIGTERM)


def _reap() -> None:
    with contextlib.suppress(OSError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants() -> list[int]:
    """The living processes that descend from this one; none where the system has no /proc."""
    children: dict[int, list[int]] = {}
    for process, (parent, state) in _processes().items():
        if state != "Z":
            children.setdefault(parent, []).append(process)
    found, ahead = [], [os.getpid()]
    while ahead:
        below = children.get(ahead.pop(), [])
        found += below
        ahead += below
    return found


def _processes() -> Mapping[int, tuple[int, str]]:
    """Process -> (its parent, its state)."""
    known: dict[int, tuple[int, str]] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc"):
            if name.isdecimal():
                fields: list[Any] = _status_fields(name)
                if len(fields) > 1:
                    known[int(name)] = (int(fields[1]), fields[0])
    return known


def _status_fields(process: str) -> list[str]:
    """What follows the name in /proc/N/stat; the name stands in brackets and may hold any character."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:  # it is gone
        return []
