"""Memory by address from compiled code: pointers to floats and integers, a counter that threads share, a prefetch."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

__all__ = ["floats", "integers", "prefetch", "take"]

LINE_BYTES = 64


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
def take(typingctx, address):
    """The next number of the counter at `address`: no two threads get the same, and what was written before is seen."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(64)
        place = builder.inttoptr(arguments[0], word.as_pointer())
        return builder.atomic_rmw("add", place, ir.Constant(word, 1), "seq_cst")

    return types.int64(types.intp), generate


@intrinsic
def prefetch(typingctx, address, size):
    """Asks for `size` bytes (a literal) from `address` on, into the second-level cache; any address is allowed."""
    if not isinstance(size, types.IntegerLiteral):
        return None
    lines = -(-size.literal_value // LINE_BYTES)

    def generate(context, builder, signature, arguments):
        word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
            builder.module, kind, "llvm.prefetch.p0"
        )
        for line in range(lines):
            place = builder.add(arguments[0], ir.Constant(ir.IntType(64), line * LINE_BYTES))
            flags = [ir.Constant(word, flag) for flag in (0, 2, 1)]  # to read, second level, data
            builder.call(function, [builder.inttoptr(place, byte), *flags])
        return context.get_dummy_value()

    return types.void(types.intp, size), generate
