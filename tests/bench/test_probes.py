"""What a probe is said to read, it reads; the best of each kind is the machine's rate."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from manyheads.bench import probes as module
from manyheads.bench.probes import Peaks, Probe, probes


def test_every_word_and_every_line_are_read():
    """A change anywhere is seen: in every word by the one, in the first word of a line by the other."""
    words = torch.arange(4 * 64)
    seen = module._every_word(words, 1), module._every_line(words, 1)
    for at in (0, 8, 63, 64, 129, 255):
        changed = words.clone()
        changed[at] ^= 1 << 40
        assert module._every_word(changed, 1) != seen[0]
        assert (module._every_line(changed, 1) != seen[1]) == (at % 8 == 0)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_the_amount_is_what_is_read(monkeypatch, threads):
    """Bits that no two words share: what the threads found together has those of the stretch and no others."""
    monkeypatch.setattr(module, "READ_BYTES", 32 * 8)
    words = 2 ** (torch.arange(64) % 62)
    probe = probes(words, threads)[0]
    found = probe.prepare()()
    assert len(found) == threads
    each = [32 * (i + 1) // threads - 32 * i // threads for i in range(threads)]
    read = sum(share // 4 * 4 for share in each)  # four streams: at most three words of a share are left over
    assert sum(found).bit_count() == read
    assert sum(found) < 2**32
    assert probe.amount == 32 * 8
    assert read >= 32 - 3 * threads


def test_the_next_call_reads_further_on(monkeypatch):
    monkeypatch.setattr(module, "READ_BYTES", 32 * 8)
    words = torch.arange(64)  # two stretches
    probe = probes(words, 1)[0]
    first, second, third = (probe.prepare()() for _ in range(3))
    assert first == [int(np.bitwise_xor.reduce(words[:32].numpy()))]
    assert second == [int(np.bitwise_xor.reduce(words[32:].numpy()))]
    words[5] = 1 << 20
    assert probes(words, 1)[0].prepare()() != third == first


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chains", module._CHAINS)
def test_the_loop_multiplies_and_adds_as_often_as_it_says(chains, threads):
    """x = x / 2 + 1 / 2, three times from i: i / 8 + 7 / 8; of chains from 0 on, (0 + 1 + ..) / 8 + 7 / 8 each."""
    expected = sum(range(chains)) / 8 + chains * 7 / 8
    assert module._multiply_adds(chains, 3, threads) == [expected] * threads
    assert module._multiply_adds(chains, 64, threads) == [chains] * threads  # long since 1 in float32


def test_the_amount_is_what_is_multiplied(monkeypatch):
    """Two FLOPs for each of 16 lanes, vectors at once, rounds and threads."""
    monkeypatch.setattr(module, "MULTIPLY_ROUNDS", 5)
    loops = [probe for probe in probes(torch.arange(8), 3) if "multiply-adds" in probe.name]
    assert [probe.amount for probe in loops] == [2 * 16 * chains * 5 * 3 for chains in module._CHAINS]
    assert {probe.kind for probe in loops} == {"fp32"}


def test_types_that_are_multiplied_one_by_one_have_no_peak(monkeypatch):
    seconds = {"fp32": 1.0, "bf16": 0.5, "fp16": 300.0}
    monkeypatch.setattr(module, "_multiplied", module._multiplied.__wrapped__)
    monkeypatch.setattr(module, "_trial", seconds.get)
    assert {probe.kind for probe in probes(torch.arange(8), 1)} == {"read", "fp32", "bf16"}


def test_the_best_of_each_kind_counts():
    def probe(name: str, kind: str, amount: int) -> Probe:
        return Probe(name, kind, amount, lambda: lambda: None)

    some = (probe("a", "read", 100), probe("b", "read", 100), probe("c", "fp32", 70), probe("d", "bf16", 30),
            probe("e", "fp32", 90))  # fmt: skip
    peaks = Peaks.of(some, {"a": 2.0, "b": 0.5, "c": 10.0, "d": 1.0, "e": 10.0})
    assert (peaks.bandwidth, peaks.read_by, peaks.fp32, peaks.fp32_by) == (200.0, "b", 9.0, "e")
    assert (peaks.bf16, peaks.fp16) == (30.0, 0.0)
    assert [peaks.products(dtype) for dtype in ("fp32", "bf16", "fp16", "int8")] == [9.0, 30.0, 9.0, 9.0]
