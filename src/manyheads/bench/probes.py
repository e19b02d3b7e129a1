"""This machine's read bandwidth and peaks of arithmetic, measured between the calls that are judged by them.

Several ways to read and to multiply, of which the best counts: what a machine can do is what any of them reached. Readers
go through the buffer in which the caches lie, a stretch further each time, so that memory is read and not a cache. Products
in fp32 are those of the vendor's library, which does not know every processor, and multiply-adds of our own, which move
nothing; in 16 bits the library's, where the processor has instructions for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from manyheads.cost.dtypes import MODEL_DTYPES
from manyheads.kernels import lanes, team
from manyheads.kernels.access import integers, take
from manyheads.kernels.caching import Entry, entry
from manyheads.kernels.micro import multiply_adds
from manyheads.ops.dtypes import torch_dtype

__all__ = ["MATRIX", "MULTIPLY_ROUNDS", "READ_BYTES", "Peaks", "Probe", "probes"]

READ_BYTES = 128 << 20
MATRIX = 1024
MULTIPLY_ROUNDS = 1 << 18
# Vectors under way at once. Two multiply-adds that take four cycles want eight; 16 registers, of which each holds half a
# vector or a quarter, want fewer.
_CHAINS = (3, 5, 10)
# A product in 16 bits that takes so many times as long as in fp32 is done element by element, for want of instructions.
_EMULATED = 4.0
_TRIAL = 128
_WORD_BYTES = 8
_LINE_WORDS = 8
_REQUEST = np.dtype([(name, np.int64) for name in ("shared", "threads", "words", "count")])


@dataclass(frozen=True, eq=False)
class Probe:
    """One measurement: `prepare` returns what is timed; `amount` is what a call reads (bytes) or multiplies (FLOPs)."""

    name: str
    kind: str  # "read", "fp32", "bf16" or "fp16"
    amount: int
    prepare: Callable[[], Callable[[], object]]


@dataclass(frozen=True)
class Peaks:
    """Bytes and FLOPs a second, with the probes that reached the first two; 0 for types that the processor does not multiply."""

    bandwidth: float
    read_by: str
    fp32: float
    bf16: float = 0.0
    fp16: float = 0.0
    fp32_by: str = ""

    @classmethod
    def of(cls, probes: tuple[Probe, ...], seconds: dict[str, float]) -> Peaks:
        """The best of each kind, from the seconds of each probe by name."""
        best: dict[str, tuple[float, str]] = {}
        for probe in probes:
            rate = probe.amount / seconds[probe.name]
            best[probe.kind] = max(best.get(probe.kind, (0.0, "")), (rate, probe.name))
        bf16, fp16 = (best.get(kind, (0.0, ""))[0] for kind in ("bf16", "fp16"))
        return cls(*best["read"], best["fp32"][0], bf16, fp16, best["fp32"][1])

    def products(self, dtype: str) -> float:
        """FLOPs a second of a step over a cache of `dtype` at most: widened to fp32, or as it is where that is quicker."""
        return max(self.fp32, self.rates.get(dtype, 0.0))

    @property
    def rates(self) -> dict[str, float]:
        """FLOPs a second by type, of those that the processor multiplies."""
        return {kind: rate for kind in MODEL_DTYPES if (rate := getattr(self, kind))}


def probes(words: Tensor, threads: int) -> tuple[Probe, ...]:
    """All probes: of reading `words` (int64), every word added, one word of each line, torch's sum; and of multiplying."""
    size = min(len(words), READ_BYTES // _WORD_BYTES)
    at = [0]

    def stretch() -> Tensor:
        if at[0] + size > len(words):
            at[0] = 0
        at[0] += size
        return words[at[0] - size : at[0]]

    def reader(read: Callable[[Tensor, int], object]) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            part = stretch()
            return lambda: read(part, threads)

        return prepare

    readers: dict[str, Callable[[Tensor, int], object]] = {
        "every word added": _every_word, "a word of every line": _every_line, "torch's sum": lambda part, _: part.sum(),
    }  # fmt: skip
    reads = [Probe(name, "read", size * _WORD_BYTES, reader(read)) for name, read in readers.items()]
    loops = [_loop(chains, threads) for chains in _CHAINS]
    return (*reads, *loops, *(_product(kind) for kind in MODEL_DTYPES if _multiplied(kind)))


def _product(kind: str) -> Probe:
    square = torch.rand(MATRIX, MATRIX).to(torch_dtype(kind))
    return Probe(f"{kind} matrix product", kind, 2 * MATRIX**3, lambda: lambda: square @ square)


@cache
def _multiplied(kind: str) -> bool:
    """Whether products of this type are worth a probe; a small one is tried."""
    return kind == "fp32" or _trial(kind) < _EMULATED * _trial("fp32")


def _trial(kind: str) -> float:
    square, seconds = torch.rand(_TRIAL, _TRIAL).to(torch_dtype(kind)), []
    for _ in range(4):
        began = time.perf_counter()
        square @ square
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _loop(chains: int, threads: int) -> Probe:
    flops = 2 * lanes.LANES * chains * MULTIPLY_ROUNDS * threads
    rounds = MULTIPLY_ROUNDS
    name = f"fp32 multiply-adds, {chains} vectors at once"
    return Probe(name, "fp32", flops, lambda: lambda: _multiply_adds(chains, rounds, threads))


def _multiply_adds(chains: int, rounds: int, threads: int) -> list[float]:
    """x = x / 2 + 1 / 2, `rounds` times on each thread; the sum over all chains of one lane of each thread."""
    shared: Any = np.zeros((threads + 1) * 2 * lanes.LANES, np.float32)  # a counter, and two vectors for each thread
    shared[2 * lanes.LANES :] = 0.5
    request = np.array((shared.ctypes.data, threads, 0, rounds), _REQUEST)
    team.run(_multiplier(chains).address, request.ctypes.data, threads)
    return [float(total) for total in shared[2 * lanes.LANES :: 2 * lanes.LANES]]


@cache
def _multiplier(chains: int) -> Entry:
    """Compiled when first called, or taken from the disk."""

    def multiply(pointer: Any) -> None:
        r = numba.carray(pointer, 1)[0]
        thread = take(r.shared)
        multiply_adds(chains, r.count, r.shared + 128 * (thread + 1))

    signature = numba.types.void(numba.types.CPointer(numba.from_dtype(_REQUEST)))
    return entry(multiply, signature, name=("probe", "multiply-adds", chains))


def _every_word(words: Tensor, threads: int) -> list[int]:
    """What each thread makes of its share, reading all of it."""
    return _read(words, threads, step=1)


def _every_line(words: Tensor, threads: int) -> list[int]:
    """The same, reading the first of each eight words, which brings their whole line."""
    return _read(words, threads, step=_LINE_WORDS)


def _read(words: Tensor, threads: int, *, step: int) -> list[int]:
    shared: Any = np.zeros((threads + 1) * _LINE_WORDS, np.int64)  # a counter, and a line for each thread's answer
    request = np.array((shared.ctypes.data, threads, words.data_ptr(), len(words)), _REQUEST)
    team.run(_reader(step).address, request.ctypes.data, threads)
    return [int(word) for word in shared[_LINE_WORDS::_LINE_WORDS]]


@cache
def _reader(step: int) -> Entry:
    """Compiled when first called, or taken from the disk. Several streams at once: one alone is fetched too late."""

    def read(pointer: Any) -> None:
        r = numba.carray(pointer, 1)[0]
        thread = take(r.shared)
        begin = r.count * thread // r.threads
        share = r.count * (thread + 1) // r.threads - begin
        words = numba.carray(integers(r.words + 8 * begin), (share,))
        part = share // 4
        a = b = c = d = 0
        for i in range(0, part, step):
            a ^= words[i]
            b ^= words[part + i]
            c ^= words[2 * part + i]
            d ^= words[3 * part + i]
        numba.carray(integers(r.shared + 64 * (thread + 1)), (1,))[0] = a ^ b ^ c ^ d

    signature = numba.types.void(numba.types.CPointer(numba.from_dtype(_REQUEST)))
    return entry(read, signature, name=("probe", step))
