"""Decode attention over a cache, one pass: scores, online softmax and mix, tile by tile, on rows that share a KV head.

    m' = max(m, max_n s_n);  l' = l·e^(m-m') + sum_n e^(s_n-m');  a' = a·e^(m-m') + sum_n e^(s_n-m')·v_n

The rows of a task are the query heads of one group times the new queries: all of them read each key once. A task is one
sequence, one KV head and one stretch of keys; each thread takes the next one until none is left, and the last to finish
merges the stretches by log-sum-exp. Everything is compiled code on addresses, which needs no lock of the interpreter.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numba import carray, from_dtype, types

from manyheads.kernels import lanes
from manyheads.kernels.access import floats, half, integers, take
from manyheads.kernels.blocks import mixes, packed_scores, row_scores, widened_tile
from manyheads.kernels.caching import Compiled, Entry, compiled, entry
from manyheads.kernels.micro import exceeds, place, row_maximum, softmax_row
from manyheads.kernels.request import ARRIVED, DONE, NEXT, REQUEST
from manyheads.kernels.scratch import PACKED_TILE_KEYS, TILE_KEYS

__all__ = ["kernel"]

_SIGNATURE = types.void(types.CPointer(from_dtype(REQUEST)))


@cache
def kernel(kind: int, head_dim: int, v_head_dim: int, *, many: bool) -> Entry:
    """The kernel for a storage kind and two head sizes, as C code that takes a REQUEST.

    many  for tasks of PACKED_ROWS rows or more; the two are compiled apart, since most models need one of them only
    """
    attend, finish = _task(kind, head_dim, v_head_dim, many=many), _finish(kind, v_head_dim)

    def run(pointer):
        r = carray(pointer, 1)[0]
        thread = take(r.counters + ARRIVED)
        task = take(r.counters + NEXT)
        while task < r.tasks:
            part = task if r.splits > 1 else thread
            attend(r, task, thread, part)
            if r.splits == 1:
                finish(r, task, part)
            elif take(r.counters + DONE) == r.tasks - 1:
                for group in range(r.tasks // r.splits):
                    finish(r, group, group * r.splits)
            task = take(r.counters + NEXT)

    return entry(run, _SIGNATURE, name=("decode", kind, head_dim, v_head_dim, many))


def _task(kind: int, head_dim: int, v_head_dim: int, *, many: bool) -> Compiled:
    """One stretch of keys of one KV head of one sequence, for all its rows."""
    score, mix = (_many_rows if many else _few_rows)(kind, head_dim, v_head_dim)
    lay_out = _queries(kind, head_dim)
    columns = lanes.padded(kind, v_head_dim)
    v_row, tile_keys = 4 * columns, PACKED_TILE_KEYS if many else TILE_KEYS
    quantised = kind == lanes.INT8

    @compiled
    def run(r, task, thread, part):
        rows = r.group * r.queries
        split, head, batch = task % r.splits, task // r.splits % r.kv_heads, task // r.splits // r.kv_heads
        begin, stop, inside_from, inside_to = _stretch(r, batch, split)
        q = r.scratch + thread * r.scratch_bytes
        tile = q + r.tile_at
        mixed = r.mixed + part * rows * v_row
        statistic = 4 * ((rows + 15) // 16 * 16)
        top, total = r.top + part * statistic, r.total + part * rows * 64
        carray(floats(mixed), (rows * columns,))[:] = 0.0
        carray(floats(top), (rows,))[:] = -np.inf
        carray(floats(total), (rows * 16,))[:] = 0.0
        lay_out(r, batch, head, q)
        k = r.k + batch * r.k_batch + head * r.k_head
        v = r.v + batch * r.v_batch + head * r.v_head
        extras = quantised or r.softcap > 0.0 or r.bias != 0 or r.slopes != 0
        for key in range(begin, stop, tile_keys):
            count = min(tile_keys, stop - key)
            k_tile, v_tile = k + key * r.k_token, v + key * r.v_token
            k_next = k_tile + tile_keys * r.k_token if key + tile_keys < stop else k_tile
            score(r, q, rows, k_tile, v_tile, k_next, count)
            if extras or key < inside_from or key + count > inside_to:
                _adjust(r, tile, rows, count, key, batch, head)
            _weigh(tile, rows, count, top, total, mixed, columns)
            if quantised:
                _weigh_values(r, tile, rows, count, key, batch, head)
            mix(r, q, rows, v_tile, k_next, count, mixed)

    return run


def _few_rows(kind: int, head_dim: int, v_head_dim: int) -> tuple[Compiled, Compiled]:
    """Scores of a tile and its weighted values, straight from the cache's rows."""
    scores, mix_rows = row_scores(kind, head_dim), mixes(kind, v_head_dim)
    q_row, v_row, t_row = 4 * lanes.padded(kind, head_dim), 4 * lanes.padded(kind, v_head_dim), 4 * TILE_KEYS

    @compiled
    def score(r, q, rows, k_tile, v_tile, k_next, count):
        scores(q, q_row, rows, k_tile, r.k_token, count, q + r.tile_at, t_row, v_tile, r.v_token)

    @compiled
    def mix(r, q, rows, v_tile, k_next, count, mixed):
        mix_rows(q + r.tile_at, t_row, rows, v_tile, r.v_token, count, mixed, v_row, k_next, r.k_token)

    return score, mix


def _many_rows(kind: int, head_dim: int, v_head_dim: int) -> tuple[Compiled, Compiled]:
    """The same where it pays to transpose the keys and to widen the values of a tile once for all rows."""
    columns = lanes.padded(kind, v_head_dim)
    whole_scores, rest_scores = packed_scores(kind, head_dim), row_scores(kind, head_dim)
    widen_tile, mix_rows = widened_tile(kind, v_head_dim), mixes(lanes.FP32, columns)
    q_row, v_row, t_row = 4 * lanes.padded(kind, head_dim), 4 * columns, 4 * TILE_KEYS

    @compiled
    def score(r, q, rows, k_tile, v_tile, k_next, count):
        tile, transposed = q + r.tile_at, count // 32 * 32
        whole_scores(
            q, q_row, rows, k_tile, r.k_token, transposed // 32, tile, t_row, q + r.packed_at, v_tile, r.v_token, k_next
        )  # fmt: skip
        widen_tile(v_tile, r.v_token, count, q + r.values_at, v_row)
        rest_scores(
            q, q_row, rows, k_tile + transposed * r.k_token, r.k_token, count - transposed, tile + 4 * transposed, t_row,
            v_tile + transposed * r.v_token, r.v_token,
        )  # fmt: skip

    @compiled
    def mix(r, q, rows, v_tile, k_next, count, mixed):
        values = q + r.values_at
        mix_rows(q + r.tile_at, t_row, rows, values, v_row, count, mixed, v_row, values, v_row)

    return score, mix


@compiled
def _stretch(r, batch, split):
    """First and last + 1 key of a stretch, and between which all queries see all keys."""
    low = carray(integers(r.low + 8 * batch * r.queries), (r.queries,))
    high = carray(integers(r.high + 8 * batch * r.queries), (r.queries,))
    start, stop = max(0, low.min()), min(r.keys, high.max())
    share = (max(0, stop - start) + 16 * r.splits - 1) // (16 * r.splits) * 16
    begin = start + split * share
    return begin, min(stop, begin + share), low.max(), high.min()


def _queries(kind: int, size: int) -> Compiled:
    """The rows of a task: scaled, and in the order in which keys are widened, zeros up to whole loads."""
    columns = lanes.padded(kind, size)

    @compiled
    def run(r, batch, head, out):
        scale = np.float32(r.scale)
        for row in range(r.group * r.queries):
            at = r.q + batch * r.q_batch + (head * r.group + row // r.queries) * r.q_head + row % r.queries * r.q_query
            source = carray(floats(at), (size,))
            line = carray(floats(out + 4 * row * columns), (columns,))
            if columns > size:
                line[:] = 0.0
            for c in range(size):
                line[place(kind, c)] = scale * source[c]

    return run


@compiled
def _adjust(r, tile, rows, count, key, batch, head):
    """What acts on scores before the softmax, row by row, in this order: an int8 cache's scales, cap, ALiBi, bias, bounds."""
    for row in range(rows):
        line = carray(floats(tile + 4 * row * TILE_KEYS), (count,))
        query, query_head = row % r.queries, head * r.group + row // r.queries
        if r.k_scale != 0:
            at = batch * r.k_scale_batch + head * r.k_scale_head + key * r.k_scale_token
            _multiply(line, r.k_scale + r.scale_bytes * at, r.k_scale_token, r.scale_bytes)
        if r.softcap > 0.0:
            cap = np.float32(r.softcap)
            for n in range(count):
                line[n] = cap * math.tanh(line[n] / cap)
        if r.slopes != 0:
            slope = carray(floats(r.slopes + 4 * query_head), (1,))[0]
            position = carray(integers(r.positions + 8 * (batch * r.queries + query)), (1,))[0]
            for n in range(count):
                line[n] -= slope * abs(position - (key + n))
        if r.bias != 0:
            base = batch * r.bias_batch + query_head * r.bias_head + query * r.bias_query + key * r.bias_key
            for n in range(count):
                line[n] += carray(floats(r.bias + 4 * (base + n * r.bias_key)), (1,))[0]
        at = 8 * (batch * r.queries + query)
        low, high = carray(integers(r.low + at), (1,))[0], carray(integers(r.high + at), (1,))[0]
        line[: max(0, min(count, low - key))] = -np.inf
        line[min(count, max(0, high - key)) : count] = -np.inf


@compiled
def _weigh_values(r, tile, rows, count, key, batch, head):
    """The scale of each value, taken into its weights."""
    at = batch * r.v_scale_batch + head * r.v_scale_head + key * r.v_scale_token
    factors = r.v_scale + r.scale_bytes * at
    for row in range(rows):
        _multiply(carray(floats(tile + 4 * row * TILE_KEYS), (count,)), factors, r.v_scale_token, r.scale_bytes)


@compiled
def _multiply(line, factors, stride, width):
    """line[n] *= factors[n · stride], which are float32 or, of a width of 2 bytes, float16."""
    if width == 2 and stride == 1:
        for n in range(len(line)):
            line[n] *= half(factors + 2 * n)
    elif width == 2:
        for n in range(len(line)):
            line[n] *= half(factors + 2 * n * stride)
    elif stride == 1:
        near = carray(floats(factors), (len(line),))
        for n in range(len(line)):
            line[n] *= near[n]
    else:
        for n in range(len(line)):
            line[n] *= carray(floats(factors + 4 * n * stride), (1,))[0]


@compiled
def _weigh(tile, rows, count, top, total, mixed, columns):
    """e^(s - m) of each row in place, its running maximum and sums; what a row has mixed so far shrinks with them."""
    vectors = (count + 15) // 16
    tops = carray(floats(top), (rows,))
    for row in range(rows):
        place, sums = tile + 4 * row * TILE_KEYS, total + 64 * row
        if count % 16:
            carray(floats(place), (TILE_KEYS,))[count : 16 * vectors] = -np.inf
        if exceeds(place, vectors, tops[row]):
            known, tops[row] = tops[row], row_maximum(place, vectors)
            shrink = np.float32(math.exp(known - tops[row]))
            _shrink(carray(floats(sums), (16,)), shrink)
            _shrink(carray(floats(mixed + 4 * row * columns), (columns,)), shrink)
        if tops[row] == -np.inf:
            _hide(carray(floats(place), (count,)), row, tops, carray(floats(sums), (16,)))
            continue
        softmax_row(place, vectors, tops[row], sums)


@compiled
def _shrink(line, factor):
    for n in range(len(line)):
        line[n] *= factor


@compiled
def _hide(line, row, tops, sums):
    """Weights of a row that has seen nothing: zeros, but for NaN, which the maximum passes over."""
    for n in range(len(line)):
        if line[n] == line[n]:
            line[n] = 0.0
        else:
            tops[row] = 0.0
            sums[0] = np.nan


def _finish(kind: int, size: int) -> Compiled:
    """Adds up the stretches of each row and divides: zeros where nothing was seen; BF16's columns back in order."""
    columns = lanes.padded(kind, size)

    @compiled
    def run(r, group, first):
        rows, head = r.group * r.queries, group % r.kv_heads
        statistic = (rows + 15) // 16 * 16
        tops = carray(floats(r.top + 4 * first * statistic), (r.splits, statistic))
        totals = carray(floats(r.total + 64 * first * rows), (r.splits, rows, 16))
        mixed = carray(floats(r.mixed + 4 * first * rows * columns), (r.splits, rows, columns))
        for row in range(rows):
            best = tops[:, row].max()
            whole = 0.0
            if r.sinks != 0:
                sink = carray(floats(r.sinks), (r.kv_heads * r.group,))[head * r.group + row // r.queries]
                best = max(best, sink)
                whole = math.exp(sink - best)
            out = carray(floats(r.out + 4 * (group * rows + row) * size), (size,))
            sums = mixed[0, row]
            for split in range(r.splits):
                total = totals[split, row].sum()
                seen = tops[split, row] != -np.inf or total != 0.0
                factor = math.exp(tops[split, row] - best) if seen else 0.0
                whole += factor * total
                weight, line = np.float32(factor), mixed[split, row]
                for n in range(columns):
                    share = weight * line[n] if seen else np.float32(0.0)
                    sums[n] = share if split == 0 else sums[n] + share
            divisor = np.float32(whole) if best != -np.inf else np.float32(1.0)
            for n in range(size):
                out[n] = sums[place(kind, n)] / divisor

    return run
