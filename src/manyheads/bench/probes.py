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

from manyheads.kernels import pool

__all__ = ["MATRIX", "READ_BYTES", "Peaks", "Probe", "probes"]

READ_BYTES = 128 << 20
MATRIX = 1024
_WORD_BYTES = 8
_LINE_WORDS = 8
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "boundscheck": False}


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
    """All probes over `words` (int64): every word added, one word of each line, numpy's sum; and two matrix products."""
    array = words.numpy()
    size = min(len(array), READ_BYTES // _WORD_BYTES)
    at = [0]

    def stretch() -> np.ndarray:
        if at[0] + size > len(array):
            at[0] = 0
        at[0] += size
        return array[at[0] - size : at[0]]

    def reader(read: Callable[[np.ndarray], object]) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            parts = np.array_split(stretch(), threads)

            def share(i: int, _: int) -> None:
                read(parts[i])

            return lambda: pool.run(share, threads)

        return prepare

    every_word, every_line = _readers()
    readers: dict[str, Callable[[np.ndarray], object]] = {
        "every word added": every_word, "a word of every line": every_line, "numpy's sum": np.sum,
    }  # fmt: skip
    reads = [Probe(name, "read", size * _WORD_BYTES, reader(read)) for name, read in readers.items()]
    return (*reads, *(_product(kind, dtype) for kind, dtype in _PRODUCTS.items()))


def _product(kind: str, dtype: torch.dtype) -> Probe:
    square = torch.rand(MATRIX, MATRIX).to(dtype)
    return Probe(f"{kind} matrix product", kind, 2 * MATRIX**3, lambda: lambda: square @ square)


@cache
def _readers() -> tuple[Callable[[np.ndarray], object], Callable[[np.ndarray], object]]:
    """Compiled when first called, or taken from the disk cache. Several streams at once: one alone is fetched too late."""

    @numba.njit(**_OPTIONS)
    def every_word(words: Any) -> int:
        part = len(words) // 4
        a = b = c = d = 0
        for i in range(part):
            a += words[i]
            b += words[part + i]
            c += words[2 * part + i]
            d += words[3 * part + i]
        return a ^ b ^ c ^ d

    @numba.njit(**_OPTIONS)
    def every_line(words: Any) -> int:
        part = len(words) // 4
        a = b = c = d = 0
        for i in range(0, part, _LINE_WORDS):
            a ^= words[i]
            b ^= words[part + i]
            c ^= words[2 * part + i]
            d ^= words[3 * part + i]
        return a ^ b ^ c ^ d

    return every_word, every_line
