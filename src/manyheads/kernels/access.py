"""Memory by address from compiled code: pointers to floats and integers, a counter that threads share, a prefetch."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from manyheads.kernels import lanes

__all__ = ["floats", "half", "integers", "prefetch", "take"]


def _pointer(kind: Any) -> Any:
    """An intrinsic that reads an address as a pointer to `kind`, for `numba.carray`."""

    @intrinsic
    def read(typingctx, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

        return types.CPointer(kind)(types.intp), generate

    return read


floats = _pointer(types.float32)
integers = _pointer(types.int64)


@intrinsic
def half(typingctx, address):
    """The float16 at `address` as float32."""

    def generate(context, builder, signature, arguments):
        word = builder.load(builder.inttoptr(arguments[0], ir.IntType(16).as_pointer()))
        return builder.fpext(builder.bitcast(word, ir.HalfType()), ir.FloatType())

    return types.float32(types.intp), generate


@intrinsic
def take(typingctx, address):
    """The next number of the counter at `address`: no two threads get the same, and what was written before is seen."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(64)
        place = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(word, 1), "seq_cst")

    return types.int64(types.intp), generate


@intrinsic
def prefetch(typingctx, address, size):
    """Asks for `size` bytes (a literal) from `address` on; see `lanes.prefetch`."""
    if not isinstance(size, types.IntegerLiteral):
        return None

    def generate(context, builder, signature, arguments):
        lanes.prefetch(builder, arguments[0], size.literal_value)
        return context.get_dummy_value()

    return types.void(types.intp, size), generate
