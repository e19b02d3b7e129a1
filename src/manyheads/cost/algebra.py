"""Three helpers that let one formula run on an int, an array and a symbol.

The kind of number is looked up among modules that are already imported, so that importing this imports nothing. Arrays
must be of dtype object (exact) or float64: int64 would wrap silently at terabytes, so it is refused.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["Number", "ceil_div", "exact", "least", "most"]

# int, numpy.ndarray or sympy.Expr; the latter two cannot be named without importing them.
Number = Any


def least(a: Number, b: Number) -> Number:
    """min(a, b), elementwise on arrays, Min(a, b) on symbols."""
    return _choose(a, b, "Min", "minimum", min)


def most(a: Number, b: Number) -> Number:
    """max(a, b), elementwise on arrays, Max(a, b) on symbols."""
    return _choose(a, b, "Max", "maximum", max)


def ceil_div(a: Number, b: Number) -> Number:
    """a / b rounded up: -(-a // b), which ints, object arrays, float64 arrays and symbols all have."""
    return -(-exact(a) // exact(b))


def exact(value: Number) -> Number:
    """`value` itself, unless it is an array of fixed-width integers, which would wrap."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray | numpy.integer) and value.dtype.kind in "iub":
        raise TypeError(
            f"array of dtype {value.dtype} wraps at large sizes; use dtype object for exact integers, or float64"
        )
    return value


def _choose(a: Number, b: Number, symbolic: str, elementwise: str, plain: Any) -> Number:
    exact(a), exact(b)
    sympy = sys.modules.get("sympy")
    if sympy is not None and (isinstance(a, sympy.Basic) or isinstance(b, sympy.Basic)):
        return getattr(sympy, symbolic)(a, b)
    numpy = sys.modules.get("numpy")
    if numpy is not None and (isinstance(a, numpy.ndarray) or isinstance(b, numpy.ndarray)):
        return getattr(numpy, elementwise)(a, b)
    return plain(a, b)
