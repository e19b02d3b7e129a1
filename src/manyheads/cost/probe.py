"""This machine's roofline, measured in about a second: read bandwidth and the peak of a matrix product.

Needs numpy, which the base install does not bring. Readings on a shared machine are noisy: the best of several is taken,
and every figure made from them says "measured".
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any

from manyheads.errors import BackendError
from manyheads.record import record

__all__ = ["MeasuredMachine", "this_machine"]

READ_BYTES = 256 << 20  # several times any last-level cache of a laptop, so that memory is read and not a cache
MATRIX = 1536
REPEATS = 5


@record
class MeasuredMachine:
    """What was measured here; the same figures that `manyheads.facts.hardware` publishes for others."""

    name: str
    title: str
    bandwidth_bytes_per_second: int
    peak_flops_per_second: dict[str, int]
    memory_bytes: int | None
    source: str
    provenance: str = "measured"


def this_machine() -> MeasuredMachine:
    """Measures the machine at hand: a sum over a large array for bandwidth, an fp32 matrix product for the peak."""
    try:
        numpy = import_module("numpy")
    except ModuleNotFoundError:
        raise BackendError(
            "--hardware this-machine measures with numpy, which is not installed; pip install 'manyheads[models]' brings it"
        ) from None
    data = numpy.ones(READ_BYTES // 8, dtype=numpy.float64)
    square = numpy.ones((MATRIX, MATRIX), dtype=numpy.float32)
    threads = os.cpu_count() or 1
    parts = numpy.array_split(data, threads)
    with ThreadPoolExecutor(threads) as pool:  # numpy's sums let go of the interpreter's lock
        bandwidth = data.nbytes / _best(lambda: list(pool.map(lambda part: part.sum(), parts)))
    peak = 2 * MATRIX**3 / _best(lambda: square @ square)
    return MeasuredMachine(
        name="this-machine",
        title=f"this machine ({platform.machine()}, {threads} threads)",
        bandwidth_bytes_per_second=int(bandwidth),
        peak_flops_per_second={"fp32": int(peak)},
        memory_bytes=_memory_bytes(),
        source=f"best of {REPEATS}: numpy {numpy.__version__}, sums over {READ_BYTES >> 20} MiB on {threads} threads, "
        f"fp32 product {MATRIX}x{MATRIX}",
    )


def _best(work: Callable[[], Any]) -> float:
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on this system
        return None
