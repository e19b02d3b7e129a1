"""Sixteen fp32 lanes at a time: the vector instructions that the kernels are made of, as LLVM builders.

Numba's own loops leave registers to LLVM's vectoriser, which neither blocks them nor widens 16-bit words well. Here each
load, widening, multiply-add and sum of lanes is stated; LLVM still allocates the registers and, where a processor has
no 512-bit ones, splits every vector in two or four.

Storage kinds: FP32; BF16, of which a 32-bit word holds an even element below an odd one, so that a shift and a mask widen
32 elements in two instructions, even ones first; FP16 by the processor's conversion; INT8 by sign extension.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.core import cgutils

__all__ = [
    "BF16",
    "BYTES",
    "FP16",
    "FP32",
    "INT8",
    "LANES",
    "LINE_BYTES",
    "STEP",
    "any_lane",
    "broadcast",
    "constant",
    "exp",
    "fma",
    "lane_order",
    "load",
    "load_scalar",
    "load_step",
    "padded",
    "prefetch",
    "select_lanes",
    "splat",
    "store",
    "sum_lanes",
    "transpose",
]

FP32, BF16, FP16, INT8 = 0, 1, 2, 3
BYTES = {FP32: 4, BF16: 2, FP16: 2, INT8: 1}
LANES = 16
LINE_BYTES = 64
# Elements that one load widens.
STEP = {FP32: 16, BF16: 32, FP16: 16, INT8: 16}

_I8, _I16, _I32, _I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
_F32 = ir.FloatType()
VECTOR = ir.VectorType(_F32, LANES)
_WORDS = ir.VectorType(_I32, LANES)
_HALVES = ir.VectorType(ir.HalfType(), LANES)
_SHORTS = ir.VectorType(_I16, LANES)
_CHARS = ir.VectorType(_I8, LANES)


def padded(kind: int, size: int) -> int:
    """Elements of a row once it is loaded: whole loads."""
    step = STEP[kind]
    return -(-size // step) * step


def constant(value: int) -> ir.Constant:
    """A 64-bit integer, for addresses."""
    return ir.Constant(_I64, value)


def splat(value: float) -> ir.Constant:
    """The same float in every lane."""
    return ir.Constant(VECTOR, [value] * LANES)


def load(builder: ir.IRBuilder, address: ir.Value, kind: ir.Type = VECTOR, *, align: int = 4) -> ir.Value:
    """A vector from `address`, which need not be aligned beyond its elements."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = align
    return value


def load_scalar(builder: ir.IRBuilder, address: ir.Value) -> ir.Value:
    """One float from `address`."""
    value = builder.load(builder.inttoptr(address, _F32.as_pointer()))
    value.align = 4
    return value


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value) -> None:
    """Writes a vector of floats to `address`."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def prefetch(builder: ir.IRBuilder, address: ir.Value, size: int) -> None:
    """Asks for `size` bytes from `address` on, into the second-level cache; any address is allowed."""
    byte = _I8.as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    flags = [ir.Constant(_I32, flag) for flag in (0, 2, 1)]  # to read, second level, data
    for line in range(0, size, LINE_BYTES):
        builder.call(function, [builder.inttoptr(builder.add(address, constant(line)), byte), *flags])


def broadcast(builder: ir.IRBuilder, scalar: ir.Value) -> ir.Value:
    """`scalar` in every lane."""
    first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), scalar, ir.Constant(_I32, 0))
    return select_lanes(builder, first, first, [0] * LANES)


def select_lanes(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, lanes: Sequence[int]) -> ir.Value:
    """Lanes of a (0 to 15) and b (16 to 31), in the order given."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes)))


def any_lane(builder: ir.IRBuilder, mask: ir.Value) -> ir.Value:
    """Whether any of 16 truth values is true."""
    return builder.icmp_unsigned("!=", builder.bitcast(mask, _I16), ir.Constant(_I16, 0))


def fma(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """a * b + c, rounded once."""
    return builder.call(_intrinsic(builder, "llvm.fma.v16f32", 3), [a, b, c])


def _intrinsic(builder: ir.IRBuilder, name: str, arguments: int) -> ir.Function:
    kind = ir.FunctionType(VECTOR, [VECTOR] * arguments)
    return cgutils.get_or_insert_function(builder.module, kind, name)


def load_step(builder: ir.IRBuilder, address: ir.Value, kind: int, left: int) -> list[ir.Value]:
    """The next STEP[kind] elements as fp32 vectors (BF16: even elements, then odd ones); beyond `left` they are zero.

    Nothing beyond the last element is read. A row of BF16 must have an even number of elements.
    """
    if kind == BF16:
        words = _part(builder, address, _WORDS, min(left // 2, LANES), 2)
        even = builder.shl(words, ir.Constant(_WORDS, [16] * LANES))
        odd = builder.and_(words, ir.Constant(_WORDS, [0xFFFF0000] * LANES))
        return [builder.bitcast(even, VECTOR), builder.bitcast(odd, VECTOR)]
    count = min(left, LANES)
    if kind == FP32:
        return [_part(builder, address, VECTOR, count, 4)]
    if kind == FP16:
        return [builder.fpext(builder.bitcast(_part(builder, address, _SHORTS, count, 2), _HALVES), VECTOR)]
    return [builder.sitofp(builder.sext(_part(builder, address, _CHARS, count, 1), _WORDS), VECTOR)]


def _part(builder: ir.IRBuilder, address: ir.Value, kind: ir.VectorType, count: int, align: int) -> ir.Value:
    """The first `count` elements of a vector at `address`, the others zero and not read."""
    if count == LANES:
        return load(builder, address, kind, align=align)
    value = ir.Constant(kind, None)
    size = 4 if kind.element == _F32 else kind.element.width // 8
    for lane in range(count):
        place = builder.inttoptr(builder.add(address, constant(lane * size)), kind.element.as_pointer())
        item = builder.load(place)
        item.align = align
        value = builder.insert_element(value, item, ir.Constant(_I32, lane))
    return value


def sum_lanes(builder: ir.IRBuilder, vectors: Sequence[ir.Value]) -> ir.Value:
    """Sixteen vectors to one: lane i is the sum of all lanes of vector lane_order()[i].

    A tree of four levels: halves of two vectors are added side by side, so that each level halves the vectors.
    """
    width, items = LANES, list(vectors)
    while len(items) > 1:
        items = [_add_halves(builder, a, b, width) for a, b in zip(items[::2], items[1::2], strict=True)]
        width //= 2
    return items[0]


def _add_halves(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, width: int) -> ir.Value:
    """[a's low + high half | b's high + low half] of every `width` lanes: one blend in place, one shuffle, one addition."""
    half = width // 2
    kept = [lane if lane % width < half else LANES + lane for lane in range(LANES)]
    moved = [lane + half if lane % width < half else LANES + lane - half for lane in range(LANES)]
    return builder.fadd(select_lanes(builder, a, b, kept), select_lanes(builder, a, b, moved))


def transpose(builder: ir.IRBuilder, rows: Sequence[ir.Value]) -> list[ir.Value]:
    """The 16 columns of 16 vectors: four levels of exchanging blocks of 8, 4, 2 and 1 lanes."""
    items = list(rows)
    block = LANES // 2
    while block:
        for i in range(LANES):
            if i & block:
                continue
            a, b = items[i], items[i + block]
            low = [lane if not lane & block else LANES + lane - block for lane in range(LANES)]
            high = [lane + block if not lane & block else LANES + lane for lane in range(LANES)]
            items[i], items[i + block] = select_lanes(builder, a, b, low), select_lanes(builder, a, b, high)
        block //= 2
    return items


def lane_order() -> list[int]:
    """Which vector's sum each lane of `sum_lanes` holds."""
    width, items = LANES, [[i] * LANES for i in range(LANES)]
    while len(items) > 1:
        half = width // 2
        items = [
            [x for start in range(0, LANES, width) for x in [a[start]] * half + [b[start]] * half]
            for a, b in zip(items[::2], items[1::2], strict=True)
        ]
        width //= 2
    return items[0]


# exp(x) = 2^n · e^r, n = round(x / ln 2), |r| <= ln 2 / 2; e^r by the Taylor polynomial of degree 7, whose error there is
# below 6e-9, a tenth of fp32's last bit.
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.4426950408889634, 0.693145751953125, 1.428606820309417e-06
_ROUND = 12582912.0  # 1.5 · 2^23: adding it leaves the rounded integer in the low bits
_TAYLOR = (1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0)
_SMALLEST = -87.33654  # below, 2^n is no normal number; the result is 0


def exp(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x lane by lane for x <= 0: to two units in the last place; 0 below -87.3, NaN where x is."""
    shifted = fma(builder, x, splat(_LOG2_E), splat(_ROUND))
    n = builder.fsub(shifted, splat(_ROUND))
    r = fma(builder, n, splat(-_LN2_HIGH), x)
    r = fma(builder, n, splat(-_LN2_LOW), r)
    value = splat(_TAYLOR[0])
    for coefficient in _TAYLOR[1:]:
        value = fma(builder, value, r, splat(coefficient))
    power = builder.shl(builder.bitcast(shifted, _WORDS), ir.Constant(_WORDS, [23] * LANES))
    scaled = builder.bitcast(builder.add(builder.bitcast(value, _WORDS), power), VECTOR)
    tiny = builder.fcmp_ordered("<", x, splat(_SMALLEST))
    kept = builder.select(tiny, splat(0.0), scaled)
    return builder.select(builder.fcmp_unordered("uno", x, x), x, kept)
