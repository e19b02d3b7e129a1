"""What a call of the kernels hands over: one record of addresses, sizes and strides, which every thread reads.

Strides of q, k and v are in bytes, all others in elements; an address of 0 stands for what is not there. The record and the
memory that the threads work in are kept by each calling thread, for its next call.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import NamedTuple

import numpy as np
from torch import Tensor

from manyheads.kernels.scratch import Scratch

__all__ = ["ARRIVED", "DONE", "NEXT", "REQUEST", "Inputs", "prepared"]

# Three counters that the threads share, each in a line of its own: their numbers, the next task, and the tasks done.
ARRIVED, NEXT, DONE = 0, 64, 128
_COUNTER_BYTES = 192
_LINE_BYTES = 64
# Enough keys that starting a task is nothing beside reading them.
_LEAST_KEYS_A_TASK = 256

_INTEGERS = """
    counters tasks splits kv_heads group queries keys
    q q_batch q_head q_query k k_batch k_head k_token v v_batch v_head v_token
    k_scale k_scale_batch k_scale_head k_scale_token v_scale v_scale_batch v_scale_head v_scale_token
    scale_bytes low high bias bias_batch bias_head bias_query bias_key slopes positions sinks
    scratch scratch_bytes tile_at packed_at values_at mixed top total out
"""

#: scale_bytes: 4 for float32 scales, 2 for float16. tasks = batch · kv_heads · splits; rows of a task = group · queries. mixed (parts, rows, widened v), top (parts,
#: rows) and total (parts, rows, 16 lanes) hold what a task found: a part for each task where keys are split, else one for
#: each thread.
REQUEST = np.dtype([*((name, np.int64) for name in _INTEGERS.split()), ("scale", np.float64), ("softcap", np.float64)])
_FORMAT = struct.Struct(f"{len(_INTEGERS.split())}q2d")


class Inputs(NamedTuple):
    """Tensors as the kernel reads them; they must live until it has."""

    q: Tensor
    k: Tensor
    v: Tensor
    low: Tensor
    high: Tensor
    bias: Tensor | None
    slopes: Tensor | None
    positions: Tensor | None
    sinks: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    out: Tensor


class _Kept(threading.local):
    """A thread's record and its working memory, which grows."""

    def __init__(self) -> None:
        self.record = ctypes.create_string_buffer(_FORMAT.size)
        self.address = ctypes.addressof(self.record)
        self.memory = ctypes.create_string_buffer(0)
        self.start = self.size = 0

    def room(self, size: int) -> int:
        """The address, at a line's start, of `size` bytes."""
        if self.size < size:
            self.memory = ctypes.create_string_buffer(size + _LINE_BYTES)
            self.start = -(-ctypes.addressof(self.memory) // _LINE_BYTES) * _LINE_BYTES
            self.size = size
        return self.start


_kept = _Kept()


def prepared(x: Inputs, scratch: Scratch, threads: int, scale: float, softcap: float) -> tuple[int, int]:
    """The address of a REQUEST for a call, good until the thread's next one, and the number of tasks."""
    (b, h, t, _), (_, kv_heads, s, _) = x.q.shape, x.k.shape
    splits = _splits(b * kv_heads, s, threads)
    tasks = b * kv_heads * splits
    parts = tasks if splits > 1 else threads
    working = _COUNTER_BYTES + threads * scratch.thread
    top = working + parts * scratch.mixed
    total = top + parts * scratch.top
    start = _kept.room(total + parts * scratch.total)
    ctypes.memset(start, 0, _COUNTER_BYTES)
    _FORMAT.pack_into(
        _kept.record, 0,
        start, tasks, splits, kv_heads, h // kv_heads, t, s,
        *_place(x.q), *_place(x.k), *_place(x.v), *_elements(x.k_scale, 3), *_elements(x.v_scale, 3),
        0 if x.k_scale is None else x.k_scale.element_size(),
        x.low.data_ptr(), x.high.data_ptr(), *_elements(x.bias, 4),
        _address(x.slopes), _address(x.positions), _address(x.sinks),
        start + _COUNTER_BYTES, scratch.thread, scratch.tile_at, scratch.packed_at, scratch.values_at,
        start + working, start + top, start + total, x.out.data_ptr(), scale, softcap,
    )  # fmt: skip
    return _kept.address, tasks


def _splits(heads: int, keys: int, threads: int) -> int:
    """Stretches of keys for each sequence and KV head: none where the heads alone keep every thread equally busy."""
    if threads == 1 or (heads >= 4 * threads or heads % threads == 0):
        return 1
    return max(1, min(2 * threads, keys // _LEAST_KEYS_A_TASK))


def _place(x: Tensor) -> tuple[int, int, int, int]:
    """Address, and strides in bytes of all axes but the last."""
    width, (a, b, c, _) = x.element_size(), x.stride()
    return x.data_ptr(), a * width, b * width, c * width


def _elements(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """Address and strides in elements; zeros for nothing."""
    return (0,) * (axes + 1) if x is None else (x.data_ptr(), *x.stride())


def _address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()
