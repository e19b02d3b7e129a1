"""How much memory a process ever held, for scripts that tests run in a process of their own."""

from __future__ import annotations

import sys

import pytest

__all__ = ["PEAK_BYTES", "needs_proc"]

# Not ru_maxrss: a child starts with its parent's, and a test run is a large parent.
PEAK_BYTES = """
def peak_bytes():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""

needs_proc = pytest.mark.skipif(
    sys.platform != "linux", reason="how much memory a process ever held is read from /proc"
)
