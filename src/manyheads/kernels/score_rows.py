# ruff: noqa: ANN001, ANN202, ARG001 - functions that Numba compiles take no annotations
"""The scan of `ops.score_rows`, compiled: one pass over the scores of a tile while they are in the cache.

What a plain scan does in some thirty operations on tensors is done here with the sixteen scores of a vector in a register:
exp, entropy, distance, spread, duplicates and induction targets in about two processor cycles a score. Key sets are a
product with e, which the pass leaves where the scores were.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from llvmlite import ir
from numba import carray, from_dtype, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch import Tensor

from manyheads.kernels import lanes, team
from manyheads.kernels.access import floats, integers, take
from manyheads.kernels.caching import Entry, compiled, entry
from manyheads.kernels.micro import row_maximum
from manyheads.ops.score_rows import (
    BEST,
    COUNT,
    DISTANCE,
    KEY_SETS,
    LANES,
    PAST,
    REFERENCE,
    SQUARES,
    SUM,
    TOP,
    TOTAL,
    WEIGHTED,
    Bounds,
    Rows,
    SequenceView,
    lane_padded,
)

__all__ = ["compiled_scan"]

_INT = types.intp
_I32 = ir.IntType(32)
_WORDS = ir.VectorType(_I32, LANES)
_SUMS = 9

#: Addresses and sizes of a tile: logits (rows, stride) with `queries` rows a head; low and high (queries,) columns that are
#: seen; ids (queries,), keys and before (columns,), each 0 where there is none; key_sets (set_count, set_stride).
_NAMES = """
    counters rows queries stride logits state fields band band_width low high first_key first_query
    ids keys before key_sets set_stride set_count
"""
_REQUEST = np.dtype([(name, np.int64) for name in _NAMES.split()])


def compiled_scan(rows: Rows, logits: Tensor, columns: slice, view: SequenceView, bounds: Bounds | None) -> None:
    """Takes a tile of float32 logits (h, r, c) into `rows`, as `rows.scan` does. The logits are lost."""
    h, r, c = logits.shape
    logits = _lane_padded_tile(logits)
    low, high = bounds or (torch.zeros(r, dtype=torch.int64), torch.full((r,), columns.stop))
    low, high = (low - columns.start).clamp(0, c).contiguous(), (high - columns.start).clamp(0, c).contiguous()
    key_sets, known = (
        lane_padded(view.key_sets),
        view.ids is not None and view.keys is not None and view.before is not None,
    )
    counters: Any = np.zeros(1, dtype=np.int64)
    keys, before = (lane_padded(x) if known and x is not None else None for x in (view.keys, view.before))
    ids = None if view.ids is None else view.ids.contiguous()
    request = np.array(
        (
            counters.ctypes.data, h * r, r, logits.stride(1), logits.data_ptr(), rows.state.data_ptr(), rows.state.shape[2],
            rows.band.data_ptr(), rows.band.shape[2], low.data_ptr(), high.data_ptr(), columns.start,
            rows.first + view.offset, _at(ids, rows.first) if known else 0, _at(keys, columns.start),
            _at(before, columns.start), _at(key_sets, columns.start), key_sets.stride(0), key_sets.shape[0],
        ),
        dtype=_REQUEST,
    )  # fmt: skip
    team.run(_kernel().address, request.ctypes.data, min(team.default_threads(), h * r))


def _lane_padded_tile(logits: Tensor) -> Tensor:
    """Rows that are whole vectors apart, head after head."""
    h, r, c = logits.shape
    step = logits.stride(1)
    if logits.stride(2) == 1 and step % LANES == 0 and step >= c and logits.stride(0) == r * step:
        return logits
    whole = logits.new_empty((h, r, -(-c // LANES) * LANES))
    whole[..., :c] = logits
    return whole


def _at(x: Tensor | None, place: int) -> int:
    return 0 if x is None else x.data_ptr() + place * x.element_size()


@cache
def _kernel() -> Entry:
    def run(pointer):
        r = carray(pointer, 1)[0]
        found: Any = np.empty(_SUMS, dtype=np.float32)
        task = take(r.counters)
        while task < r.rows:
            _visit(r, task, found)
            task = take(r.counters)

    # Where the fields lie is compiled into the code, and said in a file that is none of the kernels'.
    fields = (BEST, COUNT, DISTANCE, KEY_SETS, PAST, REFERENCE, SQUARES, SUM, TOP, TOTAL, WEIGHTED)
    return entry(run, types.void(types.CPointer(from_dtype(_REQUEST))), name=("scan", LANES, fields))


@compiled
def _visit(r, task, found):
    """One row of the tile."""
    query = task % r.queries
    low, high = carray(integers(r.low), (r.queries,))[query], carray(integers(r.high), (r.queries,))[query]
    if low >= high:
        return
    address = r.logits + 4 * task * r.stride
    row = carray(floats(address), (r.stride,))
    begin, end = low // LANES * LANES, (high + LANES - 1) // LANES * LANES
    row[begin:low] = -np.inf
    row[high:end] = -np.inf
    vectors, place = np.int64((end - begin) // LANES), address + 4 * begin
    largest = row_maximum(place, vectors)
    if not largest > -np.inf:
        return
    at = r.first_query + query
    _keep_band(r, task, row, at - r.first_key, low, high)
    state = carray(floats(r.state + 4 * task * r.fields), (r.fields,))
    if largest > state[TOP]:
        column = begin
        while not holds(address + 4 * column, largest):
            column += LANES
        while row[column] != largest:
            column += 1
        _raise_top(state, largest, np.float32(r.first_key + column))
    own, keys = np.int64(0), np.int64(0)
    if r.ids != 0:
        own, keys = np.int64(carray(words(r.ids), (r.queries,))[query]), np.int64(r.keys + 4 * begin)
    behind = r.first_key + high - 1 <= at
    one_pass(
        place, vectors, state[TOP], state[REFERENCE], np.float32(at), np.float32(r.first_key + begin), own, keys,
        np.int64(r.before + 4 * begin), np.int64(found.ctypes.data), np.int64(behind),
    )  # fmt: skip
    _add(state, found, behind)
    for one in range(r.set_count):
        part = dot(place, np.int64(r.key_sets + 4 * (one * r.set_stride + begin)), vectors)
        state[KEY_SETS + 2 + one] += part


@compiled
def _keep_band(r, task, row, at, low, high):
    """Copies the logits near the diagonal, which stands at column `at`."""
    band = carray(floats(r.band + 4 * task * r.band_width), (r.band_width,))
    centre = r.band_width // 2
    for column in range(max(low, at - centre), min(high, at + centre + 1)):
        band[centre + at - column] = row[column]


@compiled
def _raise_top(state, largest, key):
    """The largest logit is now that of `key`: what was summed becomes relative to it."""
    begun = state[COUNT] > 0
    shift = state[TOP] - largest if begun else np.float32(0.0)
    factor = np.float32(np.exp(shift)) if begun else np.float32(0.0)
    state[WEIGHTED] = (state[WEIGHTED] + state[TOTAL] * shift) * factor
    state[TOTAL] *= factor
    state[DISTANCE] *= factor
    state[PAST] *= factor
    for one in range(KEY_SETS, len(state)):
        state[one] *= factor
    if not begun:
        state[REFERENCE] = largest
    state[BEST] = key
    state[TOP] = largest


@compiled
def _add(state, found, behind):
    state[TOTAL] += found[0]
    state[WEIGHTED] += found[1]
    state[DISTANCE] += found[2]
    state[PAST] += found[0] if behind else found[3]
    state[SUM] += found[4]
    state[SQUARES] += found[5]
    state[COUNT] += found[6]
    state[KEY_SETS] += found[7]
    state[KEY_SETS + 1] += found[8]


@intrinsic
def words(typingctx, address):
    """An address as a pointer to 32-bit integers."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int32)(_INT), generate


@intrinsic
def holds(typingctx, place, value):
    """Whether any of the 16 floats at `place` is `value`."""

    def generate(context, builder, signature, arguments):
        place, value = arguments
        same = builder.fcmp_ordered("==", lanes.load(builder, place), lanes.broadcast(builder, value))
        return lanes.any_lane(builder, same)

    return types.boolean(_INT, types.float32), generate


@intrinsic
def dot(typingctx, a, b, vectors):
    """The sum of a[i] · b[i] over `vectors` vectors of 16 floats."""

    def generate(context, builder, signature, arguments):
        a, b, vectors = arguments
        total = cgutils.alloca_once_value(builder, lanes.splat(0.0))
        with cgutils.for_range(builder, vectors) as loop:
            at = builder.mul(loop.index, lanes.constant(64))
            x, y = (lanes.load(builder, builder.add(base, at)) for base in (a, b))
            builder.store(lanes.fma(builder, x, y, builder.load(total)), total)
        return _added(builder, builder.load(total))

    return types.float32(_INT, _INT, _INT), generate


@intrinsic
def one_pass(typingctx, row, vectors, top, reference, query, first, own, keys, before, out, behind):
    """Sums over a stretch of a row of logits, written to `out`, and e = exp(l - top) in place of the logits.

    out: e; e·(l - top); e·|query - j|; e of j <= query; l - reference, its square and the number of logits that are seen;
    e of keys whose token is `own`, the query aside; e of keys after one. j counts from `first`. keys 0: no tokens known.
    behind: no key comes after the query, so that two comparisons are saved; the fourth sum is then 0.
    """
    signature = types.void(_INT, _INT, *[types.float32] * 4, *[_INT] * 5)

    def generate(context, builder, signature, arguments):
        behind, keys = arguments[10], arguments[7]
        simple = builder.icmp_signed("!=", behind, lanes.constant(0))
        known = builder.icmp_signed("!=", keys, lanes.constant(0))
        with builder.if_else(known) as (with_tokens, without):
            with with_tokens, builder.if_else(simple) as (causal, both):
                with causal:
                    _loop(builder, arguments, tokens=True, causal=True)
                with both:
                    _loop(builder, arguments, tokens=True, causal=False)
            with without, builder.if_else(simple) as (causal, both):
                with causal:
                    _loop(builder, arguments, tokens=False, causal=True)
                with both:
                    _loop(builder, arguments, tokens=False, causal=False)
        return context.get_dummy_value()

    return signature, generate


def _loop(builder: ir.IRBuilder, arguments: list[ir.Value], *, tokens: bool, causal: bool) -> None:
    row, vectors, top, reference, query, first, own, keys, before, out, _ = arguments
    tops, references, queries = (lanes.broadcast(builder, x) for x in (top, reference, query))
    owns = _spread(builder, builder.trunc(own, _I32))
    zero = lanes.splat(0.0)
    sums = [cgutils.alloca_once_value(builder, zero) for _ in range(_SUMS)]
    place_vector = builder.fadd(
        lanes.broadcast(builder, first), ir.Constant(lanes.VECTOR, [float(i) for i in range(LANES)])
    )
    at_vector = cgutils.alloca_once_value(builder, place_vector)

    def grow(index: int, value: ir.Value) -> None:
        builder.store(builder.fadd(builder.load(sums[index]), value), sums[index])

    def grow_product(index: int, a: ir.Value, b: ir.Value) -> None:
        builder.store(lanes.fma(builder, a, b, builder.load(sums[index])), sums[index])

    with cgutils.for_range(builder, vectors) as loop:
        at = builder.mul(loop.index, lanes.constant(64))
        address = builder.add(row, at)
        logit, j = lanes.load(builder, address), builder.load(at_vector)
        x = builder.fsub(logit, tops)
        e = lanes.exp(builder, x)
        lanes.store(builder, e, address)
        hidden = builder.fcmp_ordered("==", logit, lanes.splat(float("-inf")))
        grow(0, e)
        grow_product(1, e, builder.select(hidden, zero, x))
        away = builder.fsub(queries, j)
        grow_product(2, e, away if causal else _absolute(builder, away))
        past = builder.fcmp_ordered(">=", away, zero)
        if not causal:
            grow(3, builder.select(past, e, zero))
        about = builder.select(hidden, zero, builder.fsub(logit, references))
        grow(4, about)
        grow_product(5, about, about)
        grow(6, builder.select(hidden, zero, lanes.splat(1.0)))
        if tokens:
            elsewhere = builder.fcmp_unordered("!=", away, zero)
            same = builder.icmp_signed("==", _integers(builder, builder.add(keys, at)), owns)
            grow(7, builder.select(builder.and_(same, elsewhere), e, zero))
            after = builder.icmp_signed("==", _integers(builder, builder.add(before, at)), owns)
            grow(8, builder.select(after if causal else builder.and_(after, past), e, zero))
        builder.store(builder.fadd(j, lanes.splat(float(LANES))), at_vector)
    for index, total in enumerate(sums):
        place = builder.inttoptr(builder.add(out, lanes.constant(4 * index)), ir.FloatType().as_pointer())
        builder.store(_added(builder, builder.load(total)), place).align = 4


def _spread(builder: ir.IRBuilder, word: ir.Value) -> ir.Value:
    one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), word, ir.Constant(_I32, 0))
    return builder.shuffle_vector(one, one, ir.Constant(_WORDS, [0] * LANES))


def _integers(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    return lanes.load(builder, address, _WORDS)


def _absolute(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    bits = builder.and_(builder.bitcast(x, _WORDS), ir.Constant(_WORDS, [0x7FFFFFFF] * LANES))
    return builder.bitcast(bits, lanes.VECTOR)


def _added(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The sum of all lanes, by halves."""
    width = LANES // 2
    while width:
        other = [(i + width) % LANES for i in range(LANES)]
        vector = builder.fadd(vector, lanes.select_lanes(builder, vector, vector, other))
        width //= 2
    return builder.extract_element(vector, ir.Constant(_I32, 0))
