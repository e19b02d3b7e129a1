"""Plain threads for work that lets go of the interpreter's lock.

The caller takes a share of the work itself, helpers take the others; any number of callers may share the helpers, and a
forked child makes helpers of its own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["run"]

_lock = threading.Lock()
_helpers: ThreadPoolExecutor | None = None
_size = 0


def run(work: Callable[[int, int], None], threads: int) -> None:
    """Calls work(i, threads) for every i < threads at once, the last share on this thread; an error in any is raised."""
    if threads <= 1:
        work(0, 1)
        return
    pool = _pool(threads - 1)
    others = [pool.submit(work, i, threads) for i in range(threads - 1)]
    try:
        work(threads - 1, threads)
    finally:
        for other in others:
            other.result()


def _pool(helpers: int) -> ThreadPoolExecutor:
    global _helpers, _size
    with _lock:
        if _helpers is None or _size < helpers:
            _helpers, _size = ThreadPoolExecutor(helpers, thread_name_prefix="manyheads"), helpers
        return _helpers


def _forget() -> None:
    """In a forked child the threads are gone, and the lock may have been held by one of them."""
    global _helpers, _size, _lock
    _helpers, _size, _lock = None, 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
