"""least, most and ceil_div mean the same on an int, an array and a symbol; wrapping arrays are refused."""

from __future__ import annotations

import pytest

from manyheads.cost.algebra import ceil_div, least, most

numpy = pytest.importorskip("numpy")
sympy = pytest.importorskip("sympy")

PAIRS = [(0, 1), (7, 3), (3, 7), (10**20, 10**20 + 1), (9, 9)]


@pytest.mark.parametrize(("a", "b"), PAIRS)
def test_three_worlds_agree(a, b):
    x, y = sympy.symbols("x y", integer=True, positive=True)
    array = numpy.array([a, b, a], dtype=object)
    for function, value in ((least, min(a, b)), (most, max(a, b)), (ceil_div, (a + b - 1) // b)):
        assert function(a, b) == value
        assert function(x, y).subs({x: a, y: b}) == value
        assert function(array, b)[0] == value


def test_float64_arrays_run():
    assert least(numpy.array([1.0, 9.0]), 4).tolist() == [1.0, 4.0]
    assert ceil_div(numpy.array([8.0, 9.0]), 4).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("function", [least, most, ceil_div])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_integer_arrays_that_would_wrap_are_refused(function, dtype):
    with pytest.raises(TypeError, match=f"dtype {dtype} wraps"):
        function(numpy.array([5, 6], dtype=dtype), 3)
