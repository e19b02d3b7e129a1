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

import numpy as np

from manyheads.kernels import lanes
from manyheads.kernels.caching import compiled
from manyheads.kernels.micro import mix, pack, row_maximum, scores, scores_packed, softmax_row, widen

__all__ = ["TILE_KEYS", "Kernel", "kernel", "merge"]

Kernel = Callable[..., None]

# Keys of a tile: enough that what is done once a row and tile is little beside the products. Where many rows pass over it,
# few enough that V, widened, stays in the first-level cache.
TILE_KEYS = 128
PACKED_TILE_KEYS = 64
# From so many rows on, turning a tile once costs less than adding lanes for every block of rows.
PACKED_ROWS = 12


@cache
def kernel(kind: int, head_dim: int, v_head_dim: int) -> Kernel:
    """The kernel for a storage kind and two head sizes; compiled when first called, then from the disk cache."""
    block_scores, packed_scores = _score_blocks(kind, head_dim), _packed_scores(kind, head_dim)
    block_mix, widened_mix = _mix_blocks(kind, v_head_dim), _mix_blocks(lanes.FP32, _padded(kind, v_head_dim))
    widen_tile = _widen_tile(kind, v_head_dim)
    packed_columns, widened_columns = _padded(kind, head_dim), _padded(kind, v_head_dim)
    adjust = _adjusted()
    quantised = kind == lanes.INT8

    @compiled
    def run(
        first, step, tasks, rows, kv_heads, splits, q, k, k_strides, v, v_strides, k_scale, v_scale, low, high,
        bias, bias_strides, slopes, positions, softcap, queries, accumulated, top, total,
    ):  # fmt: skip
        q_row, a_row, t_row = q.shape[3] * 4, accumulated.shape[2] * 4, TILE_KEYS * 4
        many = rows >= PACKED_ROWS
        tile_keys = PACKED_TILE_KEYS if many else TILE_KEYS
        tile: Any = np.empty((rows, TILE_KEYS), np.float32)
        packed: Any = np.empty((packed_columns if many else 0, 32), np.float32)
        values: Any = np.empty((tile_keys if many else 0, widened_columns), np.float32)
        place, turned_place, v_place = tile.ctypes.data, packed.ctypes.data, values.ctypes.data
        q_place, a_place = q.ctypes.data, accumulated.ctypes.data
        extras = quantised or softcap > 0.0 or bias.size > 0 or slopes.size > 0
        accumulated[first::step] = 0.0
        for task in range(first, tasks, step):
            batch, rest = task // (kv_heads * splits), task % (kv_heads * splits)
            head, split = rest // splits, rest % splits
            start, stop = low[batch].min(), high[batch].max()
            inside_from, inside_to = low[batch].max(), high[batch].min()
            share = (max(0, stop - start) + 16 * splits - 1) // (16 * splits) * 16
            begin = start + split * share
            stop = min(stop, begin + share)
            q_task = q_place + (batch * kv_heads + head) * rows * q_row
            a_task = a_place + task * rows * a_row
            k_task = k + batch * k_strides[0] + head * k_strides[1]
            v_task = v + batch * v_strides[0] + head * v_strides[1]
            top[task] = -np.inf
            total[task] = 0.0
            for key in range(begin, stop, tile_keys):
                count = min(tile_keys, stop - key)
                k_tile, v_tile = k_task + key * k_strides[2], v_task + key * v_strides[2]
                turned = 0
                if many:
                    turned = count // 32 * 32
                    packed_scores(q_task, q_row, rows, k_tile, k_strides[2], turned // 32, place, t_row, turned_place)
                    widen_tile(v_tile, v_strides[2], count, v_place, 4 * widened_columns)
                block_scores(
                    q_task, q_row, rows, k_tile + turned * k_strides[2], k_strides[2], count - turned,
                    place + 4 * turned, t_row,
                )  # fmt: skip
                if extras or key < inside_from or key + count > inside_to:
                    adjust(
                        tile, rows, count, key, batch, head, low, high, k_scale, bias, bias_strides, slopes, positions,
                        softcap, queries, quantised,
                    )  # fmt: skip
                _weigh(tile, place, rows, count, task, top, total, accumulated)
                if quantised:
                    tile[:, :count] *= v_scale[batch, head, key : key + count]
                if many:
                    widened_mix(place, t_row, rows, v_place, 4 * widened_columns, count, a_task, a_row)
                else:
                    block_mix(place, t_row, rows, v_tile, v_strides[2], count, a_task, a_row)
        # An address does not keep its array alive: without a use down here, Numba frees them as soon as they are taken.
        tile[:0] = 0.0
        packed[:0] = 0.0
        values[:0] = 0.0

    return run


def _padded(kind: int, size: int) -> int:
    """Elements of a row once it is widened: whole loads."""
    step = lanes.STEP[kind]
    return -(-size // step) * step


def _packed_scores(kind: int, size: int) -> Kernel:
    """Scores of many rows over 32 keys at a time: they are turned once, then pass under blocks of 8, 4, 2 and single rows."""
    columns = _padded(kind, size)

    @compiled
    def run(q, q_row, rows, k, k_row, pairs, out, out_row, packed):
        for pair in range(pairs):
            keys, place = k + 32 * pair * k_row, out + 128 * pair
            pack(kind, size, keys, k_row, packed, 128)
            pack(kind, size, keys + 16 * k_row, k_row, packed + 64, 128)
            row = 0
            while rows - row >= 8:
                scores_packed(8, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 8
            if rows - row >= 4:
                scores_packed(4, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 4
            if rows - row >= 2:
                scores_packed(2, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)
                row += 2
            if row < rows:
                scores_packed(1, 2, q + row * q_row, q_row, packed, columns, place + row * out_row, out_row)

    return run


def _widen_tile(kind: int, size: int) -> Kernel:
    """A tile of V as fp32, widened once for all blocks of rows."""

    @compiled
    def run(v, v_row, count, out, out_row):
        for n in range(count):
            widen(kind, size, v + n * v_row, np.float32(1.0), out + n * out_row)

    return run


def _score_blocks(kind: int, size: int) -> Kernel:
    """Scores of all rows over a tile: four rows by four keys at a time, fewer rows with more keys."""

    @compiled
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

    @compiled
    def run(p, p_row, rows, v, v_row, count, out, out_row):
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


@compiled
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
    line[min(count, max(0, high[batch, query] - key)) : count] = -np.inf


@compiled
def _weigh(tile, place, rows, count, task, top, total, accumulated):
    """e^(s - m) of each row in place, its running maximum and sum; what a row has mixed so far shrinks with them."""
    vectors = (count + 15) // 16
    if count % 16:
        tile[:, count : 16 * vectors] = -np.inf
    for row in range(rows):
        line = place + row * 4 * TILE_KEYS
        largest, known = row_maximum(line, vectors), top[task, row]
        if largest > known:
            shrink = np.float32(math.exp(known - largest))
            total[task, row] *= shrink
            accumulated[task, row] *= shrink
            top[task, row] = known = largest
        if known == -np.inf:
            for n in range(count):
                if tile[row, n] == tile[row, n]:
                    tile[row, n] = 0.0
                else:  # nothing but NaN was seen, which the maximum passes over
                    top[task, row] = 0.0
                    total[task, row] = np.nan
            continue
        total[task, row] += softmax_row(line, vectors, np.float32(known))


@cache
def _adjusted() -> Kernel:
    """What acts on scores before the softmax, row by row: an int8 cache's scales, cap, biases, bounds."""

    @compiled
    def run(
        tile, rows, count, key, batch, head, low, high, k_scale, bias, bias_strides, slopes, positions, softcap,
        queries, quantised,
    ):  # fmt: skip
        group = rows // queries
        for row in range(rows):
            line = tile[row]
            if quantised:
                line[:count] *= k_scale[batch, head, key : key + count]
            _biased(
                line, count, key, batch, head * group + row // queries, row % queries, low, high, bias, bias_strides,
                slopes, positions, softcap,
            )  # fmt: skip

    return run


@cache
def merge(kind: int, v_head_dim: int) -> Kernel:
    """Adds up the stretches of each row and divides: zeros where nothing was seen; BF16's columns back in order."""
    interleaved = kind == lanes.BF16

    @compiled
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
