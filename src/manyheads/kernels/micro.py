"""The inner loops of decode attention, each a block of registers, as Numba intrinsics on raw addresses.

    scores   H query rows times N keys: H·N <= 16 sums of products, kept in registers over the whole head
    softmax  a row of scores minus its maximum, through exp, and their sum
    mix      H rows of weights times V: H x (a few vectors) accumulators over all keys of a tile
    pack, scores_packed   for many rows: 16 keys transposed once, then their scores for up to 8 rows, keys in the lanes
    widen    a row of any storage kind as fp32, in the order in which it was loaded

Sizes that shape the code (rows, keys, head size, storage kind) are literals: each combination is compiled once.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from manyheads.kernels import lanes

__all__ = [
    "exceeds",
    "mix",
    "multiply_adds",
    "pack",
    "place",
    "row_maximum",
    "scores",
    "scores_packed",
    "softmax_row",
    "widen",
]

_INT = types.intp


def _literals(*kinds: Any) -> bool:
    return all(isinstance(kind, types.IntegerLiteral) for kind in kinds)


def _steps(kind: int, size: int) -> list[tuple[int, int]]:
    """(byte offset, elements left) of each load of a row of `size` elements."""
    step = lanes.STEP[kind]
    return [(start * lanes.BYTES[kind], size - start) for start in range(0, size, step)]


@intrinsic
def scores(typingctx, rows, keys, kind, size, q, q_stride, k, k_stride, out, out_stride):
    """out[r, n] = q[r] · k[n] for `rows` x `keys` <= 16; q rows as `widen` writes them; strides and addresses in bytes."""
    if not _literals(rows, keys, kind, size):
        return None
    r_count, n_count, kind_value, size_value = (x.literal_value for x in (rows, keys, kind, size))
    signature = types.void(rows, keys, kind, size, *[_INT] * 6)

    def generate(context, builder, signature, arguments):
        q, q_stride, k, k_stride, out, out_stride = arguments[4:]
        q_rows = [builder.add(q, builder.mul(q_stride, lanes.constant(r))) for r in range(r_count)]
        k_rows = [builder.add(k, builder.mul(k_stride, lanes.constant(n))) for n in range(n_count)]
        sums = [lanes.splat(0.0)] * (r_count * n_count)
        place = 0
        for offset, left in _steps(kind_value, size_value):
            parts = [
                lanes.load_step(builder, builder.add(row, lanes.constant(offset)), kind_value, left) for row in k_rows
            ]
            for part in range(len(parts[0])):
                for r in range(r_count):
                    vector = lanes.load(builder, builder.add(q_rows[r], lanes.constant(place)))
                    for n in range(n_count):
                        at = r * n_count + n
                        sums[at] = lanes.fma(builder, vector, parts[n][part], sums[at])
                place += 4 * lanes.LANES
        padded = sums + [lanes.splat(0.0)] * (lanes.LANES - len(sums))
        total = lanes.sum_lanes(builder, padded)
        order = lanes.lane_order()
        for r in range(r_count):
            row = [order.index(r * n_count + n) for n in range(n_count)]
            values = lanes.select_lanes(builder, total, total, row)
            lanes.store(builder, values, builder.add(out, builder.mul(out_stride, lanes.constant(r))))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def mix(typingctx, rows, vectors, kind, left, p, p_stride, v, v_stride, keys, out, out_stride, ahead, ahead_stride):
    """out[r] += sum over n < keys of p[r, n] · v[n], over `vectors` loads of v starting at `v` (`left` elements remain).

    As many bytes of as many rows from `ahead` on are asked for meanwhile.
    """
    if not _literals(rows, vectors, kind, left):
        return None
    r_count, l_count, kind_value, left_value = (x.literal_value for x in (rows, vectors, kind, left))
    signature = types.void(rows, vectors, kind, left, *[_INT] * 9)

    def generate(context, builder, signature, arguments):
        p, p_stride, v, v_stride, keys, out, out_stride, ahead, ahead_stride = arguments[4:]
        steps = _steps(kind_value, left_value)[:l_count]
        size = min(left_value, l_count * lanes.STEP[kind_value]) * lanes.BYTES[kind_value]
        width = sum(2 if kind_value == lanes.BF16 else 1 for _ in steps)
        p_rows = [builder.add(p, builder.mul(p_stride, lanes.constant(r))) for r in range(r_count)]
        places = [
            [
                builder.add(builder.add(out, builder.mul(out_stride, lanes.constant(r))), lanes.constant(64 * column))
                for column in range(width)
            ]
            for r in range(r_count)
        ]
        sums = [[cgutils.alloca_once(builder, lanes.VECTOR) for _ in range(width)] for _ in range(r_count)]
        # From zero: sums of a tile are added to those of all tiles once, so that rounding grows with tiles and not with keys.
        for r in range(r_count):
            for column in range(width):
                builder.store(lanes.splat(0.0), sums[r][column])
        with cgutils.for_range(builder, keys) as loop:
            lanes.prefetch(builder, builder.add(ahead, builder.mul(ahead_stride, loop.index)), size)
            row = builder.add(v, builder.mul(v_stride, loop.index))
            values: list[ir.Value] = []
            for offset, remaining in steps:
                values += lanes.load_step(builder, builder.add(row, lanes.constant(offset)), kind_value, remaining)
            for r in range(r_count):
                weight = lanes.load_scalar(builder, builder.add(p_rows[r], builder.mul(loop.index, lanes.constant(4))))
                weights = lanes.broadcast(builder, weight)
                for column in range(width):
                    grown = lanes.fma(builder, weights, values[column], builder.load(sums[r][column]))
                    builder.store(grown, sums[r][column])
        for r in range(r_count):
            for column in range(width):
                place = places[r][column]
                lanes.store(builder, builder.fadd(lanes.load(builder, place), builder.load(sums[r][column])), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def softmax_row(typingctx, row, vectors, maximum, total):
    """row[i] = exp(row[i] - maximum) over `vectors` vectors of 16, in place, added lane by lane to the vector at `total`."""
    signature = types.void(_INT, _INT, types.float32, _INT)

    def generate(context, builder, signature, arguments):
        row, vectors, maximum, total = arguments
        top = lanes.broadcast(builder, maximum)
        sums = cgutils.alloca_once_value(builder, lanes.load(builder, total))
        with cgutils.for_range(builder, vectors) as loop:
            place = builder.add(row, builder.mul(loop.index, lanes.constant(64)))
            value = lanes.exp(builder, builder.fsub(lanes.load(builder, place), top))
            lanes.store(builder, value, place)
            builder.store(builder.fadd(builder.load(sums), value), sums)
        lanes.store(builder, builder.load(sums), total)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def exceeds(typingctx, row, vectors, known):
    """Whether any of `vectors` vectors of 16 floats is larger than `known`; a NaN is not."""
    signature = types.boolean(_INT, _INT, types.float32)

    def generate(context, builder, signature, arguments):
        row, vectors, known = arguments
        level = lanes.broadcast(builder, known)
        best = cgutils.alloca_once_value(builder, level)
        with cgutils.for_range(builder, vectors) as loop:
            value = lanes.load(builder, builder.add(row, builder.mul(loop.index, lanes.constant(64))))
            builder.store(_larger(builder, value, builder.load(best)), best)
        return lanes.any_lane(builder, builder.fcmp_ordered(">", builder.load(best), level))

    return signature, generate


def _larger(builder: ir.IRBuilder, a: ir.Value, b: ir.Value) -> ir.Value:
    """The larger of each lane; b where either is NaN."""
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@intrinsic
def row_maximum(typingctx, row, vectors):
    """The largest of `vectors` vectors of 16 floats; a NaN among them may be lost (it is met again in softmax_row)."""
    signature = types.float32(_INT, _INT)

    def generate(context, builder, signature, arguments):
        row, vectors = arguments
        best = cgutils.alloca_once_value(builder, lanes.splat(float("-inf")))
        with cgutils.for_range(builder, vectors) as loop:
            value = lanes.load(builder, builder.add(row, builder.mul(loop.index, lanes.constant(64))))
            builder.store(_larger(builder, value, builder.load(best)), best)
        return _fold(builder, builder.load(best))

    return signature, generate


def _fold(builder: ir.IRBuilder, vector: ir.Value) -> ir.Value:
    """The largest lane of `vector`."""
    width = lanes.LANES // 2
    while width:
        other = [(i + width) % lanes.LANES for i in range(lanes.LANES)]
        vector = _larger(builder, vector, lanes.select_lanes(builder, vector, vector, other))
        width //= 2
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


@intrinsic
def widen(typingctx, kind, size, source, out):
    """out = row of `size` elements at `source`, in fp32, zeros up to whole vectors.

    In the order of `load_step`: of BF16 rows, 16 even elements then 16 odd ones of each 32.
    """
    if not _literals(kind, size):
        return None
    kind_value, size_value = kind.literal_value, size.literal_value
    signature = types.void(kind, size, _INT, _INT)

    def generate(context, builder, signature, arguments):
        source, out = arguments[2:]
        place = 0
        for offset, left in _steps(kind_value, size_value):
            at = builder.add(source, lanes.constant(offset))
            for part in lanes.load_step(builder, at, kind_value, left):
                lanes.store(builder, part, builder.add(out, lanes.constant(place)))
                place += 64
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def place(typingctx, kind, n):
    """Where element n of a row stands in what `widen` writes: of BF16 the even ones of each 32 before the odd ones."""
    if not _literals(kind):
        return None
    interleaved = kind.literal_value == lanes.BF16

    def generate(context, builder, signature, arguments):
        n = arguments[1]
        if not interleaved:
            return n
        run = builder.and_(n, lanes.constant(~31))
        odd = builder.shl(builder.and_(n, lanes.constant(1)), lanes.constant(4))
        pair = builder.lshr(builder.and_(n, lanes.constant(31)), lanes.constant(1))
        return builder.or_(builder.or_(run, odd), pair)

    return types.int64(kind, types.int64), generate


@intrinsic
def pack(typingctx, kind, size, k, k_stride, out, out_stride):
    """out[d, n] = k[n, d] in fp32 for 16 keys n: d in the order of `load_step`, zeros up to whole steps."""
    if not _literals(kind, size):
        return None
    kind_value, size_value = kind.literal_value, size.literal_value
    signature = types.void(kind, size, *[_INT] * 4)

    def generate(context, builder, signature, arguments):
        k, k_stride, out, out_stride = arguments[2:]
        rows = [builder.add(k, builder.mul(k_stride, lanes.constant(n))) for n in range(lanes.LANES)]
        column = 0
        for offset, left in _steps(kind_value, size_value):
            at = lanes.constant(offset)
            loaded = [lanes.load_step(builder, builder.add(row, at), kind_value, left) for row in rows]
            for part in range(len(loaded[0])):
                for keys in lanes.transpose(builder, [row[part] for row in loaded]):
                    place = builder.add(out, builder.mul(out_stride, lanes.constant(column)))
                    lanes.store(builder, keys, place)
                    column += 1
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def scores_packed(typingctx, rows, groups, q, q_stride, packed, columns, out, out_stride):
    """out[r, 0:16·groups] = q[r] · packed keys, over `columns` elements of the head; q rows in the packed order."""
    if not _literals(rows, groups):
        return None
    r_count, g_count = rows.literal_value, groups.literal_value
    # An FMA takes four cycles and two start in each: eight sums must be under way.
    chains = max(1, 8 // (r_count * g_count))
    signature = types.void(rows, groups, *[_INT] * 6)

    def generate(context, builder, signature, arguments):
        q, q_stride, packed, columns, out, out_stride = arguments[2:]
        q_rows = [builder.add(q, builder.mul(q_stride, lanes.constant(r))) for r in range(r_count)]
        totals = [cgutils.alloca_once_value(builder, lanes.splat(0.0)) for _ in range(r_count * g_count)]
        # Sixteen products at a time: a chain over the whole head would lose two bits more to rounding.
        with cgutils.for_range(builder, builder.udiv(columns, lanes.constant(lanes.LANES))) as loop:
            start = builder.mul(loop.index, lanes.constant(lanes.LANES))
            sums = [[lanes.splat(0.0)] * chains for _ in range(r_count * g_count)]
            for column in range(lanes.LANES):
                index = builder.add(start, lanes.constant(column))
                line = builder.add(packed, builder.mul(index, lanes.constant(64 * g_count)))
                keys = [lanes.load(builder, builder.add(line, lanes.constant(64 * g))) for g in range(g_count)]
                offset = builder.mul(index, lanes.constant(4))
                for r in range(r_count):
                    query = lanes.broadcast(builder, lanes.load_scalar(builder, builder.add(q_rows[r], offset)))
                    for g in range(g_count):
                        chain = sums[r * g_count + g]
                        chain[column % chains] = lanes.fma(builder, query, keys[g], chain[column % chains])
            for total, partials in zip(totals, sums, strict=True):
                grown = builder.load(total)
                for partial in partials:
                    grown = builder.fadd(grown, partial)
                builder.store(grown, total)
        for r in range(r_count):
            at = builder.add(out, builder.mul(out_stride, lanes.constant(r)))
            for g in range(g_count):
                place = builder.add(at, lanes.constant(64 * g))
                lanes.store(builder, builder.load(totals[r * g_count + g]), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def multiply_adds(typingctx, chains, rounds, place):
    """x = a x + b over `chains` vectors of 16 floats, `rounds` times over: arithmetic alone, to see how quick it is.

    a and b are the two vectors at `place`; chain i begins at i in every lane. Their sum takes the place of a.
    """
    if not _literals(chains):
        return None
    count = chains.literal_value
    signature = types.void(chains, _INT, _INT)

    def generate(context, builder, signature, arguments):
        rounds, place = arguments[1:]
        a, b = (lanes.load(builder, builder.add(place, lanes.constant(at))) for at in (0, 64))
        chain = [cgutils.alloca_once_value(builder, lanes.splat(float(i))) for i in range(count)]
        with cgutils.for_range(builder, rounds):
            for x in chain:
                builder.store(lanes.fma(builder, a, builder.load(x), b), x)
        total = lanes.splat(0.0)
        for x in chain:
            total = builder.fadd(total, builder.load(x))
        lanes.store(builder, total, place)
        return context.get_dummy_value()

    return signature, generate
