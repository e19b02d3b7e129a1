"""This machine's read bandwidth and matrix peaks, measured between the calls that are judged by them.

Three ways to read, of which the best counts: what a machine can do is what any of them reached. They read the buffer in
which the caches lie, a stretch further each time, so that memory is read and not a cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from manyheads.kernels import team
from manyheads.kernels.access import integers, take
from manyheads.kernels.caching import Entry, entry

__all__ = ["MATRIX", "READ_BYTES", "Peaks", "Probe", "probes"]

READ_BYTES = 128 << 20
MATRIX = 1024
_WORD_BYTES = 8
_LINE_WORDS = 8
_REQUEST = np.dtype([(name, np.int64) for name in ("shared", "threads", "words", "count")])


@dataclass(frozen=True, eq=False)
class Probe:
    """One measurement: `prepare` returns what is timed; `amount` is what a call reads (bytes) or multiplies (FLOPs)."""

    name: str
    kind: str  # "read", "fp32" or "bf16"
    amount: int
    prepare: Callable[[], Callable[[], object]]


@dataclass(frozen=True)
class Peaks:
    """Bytes and FLOPs a second, and the probe that reached the bandwidth."""

    bandwidth: float
    read_by: str
    fp32: float
    bf16: float

    @classmethod
    def of(cls, probes: tuple[Probe, ...], seconds: dict[str, float]) -> Peaks:
        """The best of each kind, from the seconds of each probe by name."""
        rates = [(probe.amount / seconds[probe.name], probe) for probe in probes]
        best = {kind: max((r for r in rates if r[1].kind == kind), key=lambda r: r[0]) for kind in ("read", *_PRODUCTS)}
        return cls(best["read"][0], best["read"][1].name, best["fp32"][0], best["bf16"][0])


_PRODUCTS = {"fp32": torch.float32, "bf16": torch.bfloat16}


def probes(words: Tensor, threads: int) -> tuple[Probe, ...]:
    """All probes over `words` (int64): every word added, one word of each line, torch's sum; and two matrix products."""
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
    return (*reads, *(_product(kind, dtype) for kind, dtype in _PRODUCTS.items()))


def _product(kind: str, dtype: torch.dtype) -> Probe:
    square = torch.rand(MATRIX, MATRIX).to(dtype)
    return Probe(f"{kind} matrix product", kind, 2 * MATRIX**3, lambda: lambda: square @ square)


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
