"""This machine as a row of the hardware table: its read bandwidth and peaks of products, measured in seconds."""

from __future__ import annotations

import platform
import time

import torch

from manyheads.bench.probes import Peaks, Probe, probes
from manyheads.cost.machine import memory_bytes
from manyheads.facts.hardware import Hardware
from manyheads.kernels import team

__all__ = ["this_machine"]

BUFFER_BYTES = 256 << 20  # several times any last-level cache of a laptop, so that memory is read and not a cache
REPEATS = 5


def this_machine() -> Hardware:
    """The best of five readings of each probe of the bench; readings on a shared machine are noisy."""
    threads = team.default_threads()
    found = probes(torch.ones(BUFFER_BYTES // 8, dtype=torch.int64), threads)
    peaks = Peaks.of(found, {probe.name: _best(probe) for probe in found})
    return Hardware(
        name="this-machine",
        aliases=(),
        title=f"this machine ({platform.machine()}, {threads} threads)",
        year=time.localtime().tm_year,
        kind="cpu",
        memory=None,
        memory_bytes=memory_bytes(),
        bandwidth_bytes_per_second=int(peaks.bandwidth),
        peak_flops_per_second={name: int(rate) for name, rate in peaks.rates.items()},
        interconnect_bytes_per_second=None,
        source=f"best of {REPEATS} on {threads} threads: {peaks.read_by}; {peaks.fp32_by}",
        provenance="measured",
        notes="",
    )


def _best(probe: Probe) -> float:
    probe.prepare()()
    seconds = []
    for _ in range(REPEATS):
        call = probe.prepare()
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)
