"""ONNX's own node cases of `RotaryEmbedding`; onnxruntime as a second oracle."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")
from support import onnx_runtime
from support.onnx_adapters import rotary_embedding
from support.onnx_cases import Case, collect, differences

CASES = {case.name: case for case in collect("RotaryEmbedding")}
EXCEPTIONS: tuple[str, ...] = ()


def test_there_are_8_cases_and_no_exceptions() -> None:
    assert len(CASES) == 8
    assert EXCEPTIONS == ()


@pytest.mark.parametrize("name", CASES)
def test_onnx_rotary_embedding(name: str) -> None:
    case = CASES[name]
    assert differences(case, rotary_embedding(case)) == []


@pytest.mark.parametrize("name", CASES)
def test_onnxruntime_says_the_same(name: str) -> None:
    pytest.importorskip("onnxruntime")
    case = CASES[name]
    assert differences(Case(**{**vars(case), "outputs": onnx_runtime.run(case)}), rotary_embedding(case)) == []
