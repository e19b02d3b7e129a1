"""Decode attention over a cache, one pass: scores, online softmax and mix, tile by tile, on rows that share a KV head.

    m' = max(m, max_n s_n);  l' = l·e^(m-m') + sum_n e^(s_n-m');  a' = a·e^(m-m') + sum_n e^(s_n-m')·v_n

The rows of a task are the query heads of one group times the new queries: all of them read each key once. A task is one
sequence, one KV head and one stretch of keys; partial results (m, l, a) are merged by log-sum-exp. Everything is a plain
function on addresses that lets go of the interpreter's lock; `manyheads.kernels.pool` runs several at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numba
import numpy as np

from manyheads.kernels import lanes
from manyheads.kernels.micro import mix, pack, row_maximum, scores, scores_packed, softmax_row, widen

__all__ = ["SCRATCH_KEYS", "Kernel", "kernel", "merge"]

Kernel = Callable[..., None]

# Keys of a tile: few enough that a tile of K and V stays in the first-level cache while several row blocks pass over it.
SCRATCH_KEYS = 64
# From so many rows on, turning a tile once costs less than adding lanes for every block of rows.
PACKED_ROWS = 12
PACKED_KEYS = 32
_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy", "boundscheck": False}


@cache
def kernel(kind: int, head_dim: int, v_head_dim: int) -> Kernel:
    """The kernel for a storage kind and two head sizes; compiled when first called, then from the disk cache."""
    block_scores, packed_scores = _score_blocks(kind, head_dim), _packed_scores(kind, head_dim)
    block_mix, widened_mix = _mix_blocks(kind, v_head_dim), _mix_blocks(lanes.FP32, _padded(kind, v_head_dim))
    widen_tile = _widen_tile(kind, v_head_dim)
    packed_columns, widened_columns = _padded(kind, head_dim), _padded(kind, v_head_dim)
    logits = _logits()
    quantised = kind == lanes.INT8
    tile_keys = SCRATCH_KEYS

    @numba.njit(**_OPTIONS)
    def run(
        first, step, tasks, rows, kv_heads, splits, q, k, k_strides, v, v_strides, k_scale, v_scale, low, high,
        bias, bias_strides, slopes, positions, softcap, queries, accumulated, top, total,
    ):  # fmt: skip
        q_row, a_row = q.shape[3] * 4, accumulated.shape[2] * 4
        t_row = 4 * (PACKED_KEYS if rows >= PACKED_ROWS else tile_keys)
        many = rows >= PACKED_ROWS
        keys_at_once = PACKED_KEYS if many else tile_keys
        tile = np.empty((rows, keys_at_once), np.float32)
        packed: Any = np.empty((packed_columns if many else 0, 16), np.float32)
        values: Any = np.empty((PACKED_KEYS if many else 0, widened_columns), np.float32)
        for task in range(first, tasks, step):
            batch, rest = task // (kv_heads * splits), task % (kv_heads * splits)
            head, split = rest // splits, rest % splits
            start, stop = low[batch].min(), high[batch].max()
            share = (stop - start + splits - 1) // splits if stop > start else 0
            share = (share + 15) // 16 * 16
            begin = start + split * share
            stop = min(stop, begin + share)
            a = accumulated[task]
            a[:] = 0.0
            top[task] = -np.inf
            total[task] = 0.0
            for key in range(begin, stop, keys_at_once):
                count = min(keys_at_once, stop - key)
                k_tile = k + batch * k_strides[0] + head * k_strides[1] + key * k_strides[2]
                v_tile = v + batch * v_strides[0] + head * v_strides[1] + key * v_strides[2]
                q_task = q[batch, head].ctypes.data
                place, turned = tile.ctypes.data, 0
                if many:
                    turned = count // 16 * 16
                    packed_scores(
                        q_task, q_row, rows, k_tile, k_strides[2], turned // 16, place, t_row, packed.ctypes.data
                    )
                    widen_tile(v_tile, v_strides[2], count, values)
                block_scores(
                    q_task, q_row, rows, k_tile + turned * k_strides[2], k_strides[2], count - turned,
                    place + 4 * turned, t_row,
                )  # fmt: skip
                logits(
                    tile, rows, count, key, batch, head, low, high, k_scale, v_scale, bias, bias_strides, slopes,
                    positions, softcap, queries, top[task], total[task], a, quantised,
                )  # fmt: skip
                if many:
                    widened_mix(tile, rows, values.ctypes.data, 4 * widened_columns, count, a.ctypes.data, a_row)
                else:
                    block_mix(tile, rows, v_tile, v_strides[2], count, a.ctypes.data, a_row)

    return run


def _padded(kind: int, size: int) -> int:
    """Elements of a row once it is widened: whole loads."""
    step = lanes.STEP[kind]
    return -(-size // step) * step


def _packed_scores(kind: int, size: int) -> Kernel:
    """Scores of many rows over whole sixteens of keys: each is turned once, then passes under blocks of 12 to 1 rows."""
    columns = _padded(kind, size)

    @numba.njit(**_OPTIONS)
    def run(q, q_row, rows, k, k_row, sixteens, out, out_row, packed):
        for group in range(sixteens):
            pack(kind, size, k + 16 * group * k_row, k_row, packed)
            place = out + 64 * group
            row = 0
            while rows - row >= 12:
                scores_packed(12, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 12
            if rows - row >= 6:
                scores_packed(6, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 6
            if rows - row >= 3:
                scores_packed(3, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 3
            while row < rows:
                scores_packed(1, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 1

    return run


def _widen_tile(kind: int, size: int) -> Kernel:
    """A tile of V as fp32, widened once for all blocks of rows."""

    @numba.njit(**_OPTIONS)
    def run(v, v_row, count, values):
        place, row = values.ctypes.data, values.shape[1] * 4
        for n in range(count):
            widen(kind, size, v + n * v_row, np.float32(1.0), place + n * row)

    return run


def _score_blocks(kind: int, size: int) -> Kernel:
    """Scores of all rows over a tile: four rows by four keys at a time, fewer rows with more keys."""

    @numba.njit(**_OPTIONS)
    def run(q, q_row, rows, k, k_row, count, out, out_row):
        row = 0
        while rows - row >= 4:
            n = 0
            while n + 4 <= count:
                scores(
                    4, 4, kind, size, q + row * q_row, q_row, k + n * k_row, k_row, out + row * out_row + 4 * n, out_row
                )
                n += 4
            while n < count:
                scores(
                    4, 1, kind, size, q + row * q_row, q_row, k + n * k_row, k_row, out + row * out_row + 4 * n, out_row
                )
                n += 1
            row += 4
        left = rows - row
        n = 0
        if left == 3:
            while n + 5 <= count:
                scores(
                    3, 5, kind, size, q + row * q_row, q_row, k + n * k_row, k_row, out + row * out_row + 4 * n, out_row
                )
                n += 5
        elif left == 2:
            while n + 8 <= count:
                scores(
                    2, 8, kind, size, q + row * q_row, q_row, k + n * k_row, k_row, out + row * out_row + 4 * n, out_row
                )
                n += 8
        while row < rows:
            single = n
            while single + 16 <= count:
                scores(
                    1,
                    16,
                    kind,
                    size,
                    q + row * q_row,
                    q_row,
                    k + single * k_row,
                    k_row,
                    out + row * out_row + 4 * single,
                    out_row,
                )
                single += 16
            while single < count:
                scores(
                    1,
                    1,
                    kind,
                    size,
                    q + row * q_row,
                    q_row,
                    k + single * k_row,
                    k_row,
                    out + row * out_row + 4 * single,
                    out_row,
                )
                single += 1
            row += 1

    return run


def _mix_blocks(kind: int, size: int) -> Kernel:
    """Adds a tile's weighted values: four rows by 64 columns of accumulators at a time, fewer rows with 128."""
    per_load = lanes.STEP[kind]
    narrow, wide = 64 // per_load, 128 // per_load
    width = lanes.BYTES[kind]
    narrow_full, narrow_left = size // 64 * 64, size % 64
    wide_full, wide_left = size // 128 * 128, size % 128
    narrow_rest, wide_rest = max(narrow_left, 1), max(wide_left, 1)
    narrow_loads, wide_loads = -(-narrow_rest // per_load), -(-wide_rest // per_load)

    @numba.njit(**_OPTIONS)
    def run(tile, rows, v, v_row, count, out, out_row):
        p, p_row = tile.ctypes.data, tile.shape[1] * 4
        row = 0
        while rows - row >= 4:
            for column in range(0, narrow_full, 64):
                mix(4, narrow, kind, 64, p + row * p_row, p_row, v + column * width, v_row, count,
                    out + row * out_row + 4 * column, out_row)  # fmt: skip
            if narrow_left:
                mix(4, narrow_loads, kind, narrow_rest, p + row * p_row, p_row, v + narrow_full * width, v_row, count,
                    out + row * out_row + 4 * narrow_full, out_row)  # fmt: skip
            row += 4
        if rows - row == 3:
            for column in range(0, narrow_full, 64):
                mix(3, narrow, kind, 64, p + row * p_row, p_row, v + column * width, v_row, count,
                    out + row * out_row + 4 * column, out_row)  # fmt: skip
            if narrow_left:
                mix(3, narrow_loads, kind, narrow_rest, p + row * p_row, p_row, v + narrow_full * width, v_row, count,
                    out + row * out_row + 4 * narrow_full, out_row)  # fmt: skip
            row += 3
        if rows - row == 2:
            for column in range(0, wide_full, 128):
                mix(2, wide, kind, 128, p + row * p_row, p_row, v + column * width, v_row, count,
                    out + row * out_row + 4 * column, out_row)  # fmt: skip
            if wide_left:
                mix(2, wide_loads, kind, wide_rest, p + row * p_row, p_row, v + wide_full * width, v_row, count,
                    out + row * out_row + 4 * wide_full, out_row)  # fmt: skip
            row += 2
        if rows - row == 1:
            for column in range(0, wide_full, 128):
                mix(1, wide, kind, 128, p + row * p_row, p_row, v + column * width, v_row, count,
                    out + row * out_row + 4 * column, out_row)  # fmt: skip
            if wide_left:
                mix(1, wide_loads, kind, wide_rest, p + row * p_row, p_row, v + wide_full * width, v_row, count,
                    out + row * out_row + 4 * wide_full, out_row)  # fmt: skip

    return run


@numba.njit(**_OPTIONS)
def _biased(
    line, count, key, batch, head, query, low, high, bias, bias_strides, slopes, positions, softcap
):  # fmt: skip
    """Cap, ALiBi, bias and bounds of one row of scores, in this order."""
    if softcap > 0.0:
        for n in range(count):
            line[n] = softcap * math.tanh(line[n] / softcap)
    if slopes.size:
        for n in range(count):
            line[n] -= slopes[head] * abs(positions[batch, query] - (key + n))
    if bias.size:
        base = batch * bias_strides[0] + head * bias_strides[1] + query * bias_strides[2]
        for n in range(count):
            line[n] += bias[base + (key + n) * bias_strides[3]]
    line[: max(0, min(count, low[batch, query] - key))] = -np.inf
    line[min(count, max(0, high[batch, query] - key)) :] = -np.inf


@numba.njit(**_OPTIONS)
def _weighed(line, count, row, top, total, a):
    """e^(s - m) of one row in place, its running maximum and sum; what the row has mixed so far shrinks with them."""
    vectors = (count + 15) // 16
    place = line.ctypes.data
    largest = max(top[row], row_maximum(place, vectors))
    if largest == -np.inf:
        for n in range(count):
            if line[n] == line[n]:
                line[n] = 0.0
            else:  # nothing but NaN was seen, which the maximum passes over
                top[row] = 0.0
                total[row] = np.nan
        return
    if largest > top[row]:
        shrink = np.float32(math.exp(top[row] - largest))
        total[row] *= shrink
        a[row] *= shrink
        top[row] = largest
    total[row] += softmax_row(place, vectors, np.float32(largest))


@cache
def _logits() -> Kernel:
    """From scores to weights of a tile, row by row."""

    @numba.njit(**_OPTIONS)
    def run(
        tile, rows, count, key, batch, head, low, high, k_scale, v_scale, bias, bias_strides, slopes, positions,
        softcap, queries, top, total, a, quantised,
    ):  # fmt: skip
        group = rows // queries
        for row in range(rows):
            line = tile[row]
            line[count:] = -np.inf
            if quantised:
                line[:count] *= k_scale[batch, head, key : key + count]
            _biased(
                line, count, key, batch, head * group + row // queries, row % queries, low, high, bias, bias_strides,
                slopes, positions, softcap,
            )  # fmt: skip
            _weighed(line, count, row, top, total, a)
            if quantised:
                line[:count] *= v_scale[batch, head, key : key + count]

    return run


@cache
def merge(kind: int, v_head_dim: int) -> Kernel:
    """Adds up the stretches of each row and divides: zeros where nothing was seen; BF16's columns back in order."""
    interleaved = kind == lanes.BF16

    @numba.njit(**_OPTIONS)
    def run(accumulated, top, total, splits, kv_heads, sinks, queries, out):
        for group in range(out.shape[0] * kv_heads):
            batch, head = group // kv_heads, group % kv_heads
            rows = out.shape[2]
            for row in range(rows):
                best = -np.inf
                for split in range(splits):
                    best = max(best, top[group * splits + split, row])
                whole = 0.0
                if sinks.size:
                    sink = sinks[head * (rows // queries) + row // queries]
                    best = max(best, sink)
                    whole = math.exp(sink - best)
                line = out[batch, head, row]
                line[:] = 0.0
                if best == -np.inf:
                    continue
                for split in range(splits):
                    task = group * splits + split
                    if total[task, row] == 0.0 and top[task, row] == -np.inf:
                        continue
                    factor = math.exp(top[task, row] - best)
                    whole += factor * total[task, row]
                    for n in range(v_head_dim):
                        place = n
                        if interleaved:
                            place = n // 32 * 32 + n % 2 * 16 + n % 32 // 2
                        line[n] += np.float32(factor) * accumulated[task, row, place]
                for n in range(v_head_dim):
                    line[n] /= whole

    return run
