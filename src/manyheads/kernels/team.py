"""Compiled code on several threads at once.

The threads are torch's own where torch brought GNU's OpenMP: they are awake between torch's operators, spinning for some
milliseconds after each, and threads of ours would have to take the processors from them. Numba's thread layers are not used:
one kills a forked child, the other aborts when two threads call at once. OpenMP's own team is gone in a forked child as
well; there, and where torch has no such library, plain threads of `pool` do the same work.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any

from manyheads.kernels import pool

__all__ = ["default_threads", "run"]

_forked: list[bool] = []  # not empty in a forked child


def default_threads() -> int:
    """Threads that a call may use: MANYHEADS_THREADS, else as many as torch uses."""
    asked = os.environ.get("MANYHEADS_THREADS", "")
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    import torch

    return torch.get_num_threads()


def run(function: int, data: int, threads: int) -> None:
    """Calls the C function at address `function` with the pointer `data` on each of `threads` threads, and waits for all.

    The interpreter's lock is not held meanwhile.
    """
    if threads <= 1:
        _callable(function)(data)
        return
    team = None if _forked else _open_mp()
    if team is not None:
        team(function, data, threads, 0)
    else:
        call = _callable(function)
        pool.run(lambda *_: call(data), threads)


@cache
def _callable(function: int) -> Any:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)


@cache
def _open_mp() -> Any | None:
    """`GOMP_parallel(function, data, threads, flags)` of the library that torch runs on, or None."""
    import torch

    for path in (*sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")), *_loaded()):
        try:
            start = ctypes.CDLL(str(path)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        start.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        start.restype = None
        return start
    return None


def _loaded() -> list[Path]:
    """GNU's OpenMP as the process has it already: torch of a distribution uses that of the system."""
    maps = Path("/proc/self/maps")
    if not maps.is_file():
        return []
    return sorted({Path(line.split()[-1]) for line in maps.read_text().splitlines() if "/libgomp" in line})


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _forked.append(True))
