"""ONNX's own node cases of `LinearAttention` through all three forms; onnxruntime as a second oracle."""

from __future__ import annotations

from functools import partial

import pytest

pytest.importorskip("onnx")
from manyheads.ops import linear
from support import onnx_runtime
from support.onnx_adapters import linear_attention
from support.onnx_cases import Case, collect, differences

FORMS = {
    "recurrent": linear.recurrent,
    "quadratic": linear.quadratic,
    "chunked": linear.chunked,
    "chunks of 3": partial(linear.chunked, size=3),
}
CASES = {case.name: case for case in collect("LinearAttention")}
EXCEPTIONS: tuple[str, ...] = ()


def test_there_are_14_cases_and_no_exceptions() -> None:
    assert len(CASES) == 14
    assert EXCEPTIONS == ()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_onnx_linear_attention(name: str, form: str) -> None:
    case = CASES[name]
    assert differences(case, linear_attention(case, FORMS[form])) == []


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_says_the_same(name: str) -> None:
    pytest.importorskip("onnxruntime")
    case = CASES[name]
    theirs = Case(**{**vars(case), "outputs": onnx_runtime.run(case)})
    assert differences(theirs, linear_attention(case, linear.recurrent)) == []
