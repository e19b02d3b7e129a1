"""What a probe is said to read, it reads; the best of each kind is the machine's rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from manyheads.bench import probes as module
from manyheads.bench.probes import Peaks, Probe, probes


def test_every_word_and_every_line_are_read():
    """A change anywhere is seen: in every word by the one, in the first word of a line by the other."""
    every_word, every_line = module._readers()
    words = np.arange(4 * 64, dtype=np.int64)
    seen = every_word(words), every_line(words)
    for at in (0, 8, 63, 64, 129, 255):
        changed = words.copy()
        changed[at] ^= 1 << 40
        assert every_word(changed) != seen[0]
        assert (every_line(changed) != seen[1]) == (at % 8 == 0)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_amount_is_what_is_read(monkeypatch, threads):
    words = torch.zeros(1 << 14, dtype=torch.int64)
    read: list[int] = []
    monkeypatch.setattr(module, "_readers", lambda: (lambda part: read.append(part.nbytes), lambda part: None))
    found = {probe.name: probe for probe in probes(words, threads)}
    found["every word added"].prepare()()
    assert sum(read) == found["every word added"].amount == 1 << 16
    assert len(read) == threads


def test_the_next_call_reads_further_on(monkeypatch):
    words = torch.zeros(1 << 14, dtype=torch.int64)  # two stretches
    starts: list[int] = []
    monkeypatch.setattr(module, "_readers", lambda: (lambda part: starts.append(part.ctypes.data), lambda part: None))
    probe = probes(words, 1)[0]
    for _ in range(3):
        probe.prepare()()
    assert starts[1] - starts[0] == 1 << 16
    assert starts[2] == starts[0]


def test_the_best_of_each_kind_counts():
    def probe(name: str, kind: str, amount: int) -> Probe:
        return Probe(name, kind, amount, lambda: lambda: None)

    some = (probe("a", "read", 100), probe("b", "read", 100), probe("c", "fp32", 70), probe("d", "bf16", 30))
    peaks = Peaks.of(some, {"a": 2.0, "b": 0.5, "c": 10.0, "d": 1.0})
    assert (peaks.bandwidth, peaks.read_by, peaks.fp32, peaks.bf16) == (200.0, "b", 7.0, 30.0)
