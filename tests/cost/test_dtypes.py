"""One table of numeric formats: every word for one means the same everywhere, and nothing else writes the table again."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import manyheads
from manyheads.cost.dtypes import DTYPES, MODEL_DTYPES, dtype, dtype_among, known_dtype
from manyheads.errors import SpecError

WORDS = {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16", "F32", "BF16", "F16"}


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("fp32", "float32", "torch.float32", "F32", "float"), "fp32"),
        (("bf16", "bfloat16", "torch.bfloat16", "BF16", "16-bit"), "bf16"),
        (("fp16", "float16", "half", "F16"), "fp16"),
        (("fp8", "float8_e4m3fn", "F8_E4M3", "F8_E5M2"), "fp8"),
        (("int8", "I8", "U8", "uint8"), "int8"),
        (("q8_0", "Q8_0"), "q8_0"),
    ],
)
def test_every_spelling_is_the_same_format(words, name):
    assert {dtype(word).name for word in words} == {name}
    assert name in DTYPES


def test_a_word_among_those_that_are_valid():
    assert dtype_among("bfloat16", MODEL_DTYPES, "--dtype") == "bf16"
    assert dtype_among("model", ("model", "int8"), "dtype") == "model"
    with pytest.raises(SpecError, match="--dtype 'int8' is not one of fp32, bf16, fp16"):
        dtype_among("int8", MODEL_DTYPES, "--dtype")
    assert known_dtype("F4") is None


def test_torch_and_safetensors_have_the_formats_under_these_names():
    pytest.importorskip("torch")
    from manyheads.ops.dtypes import format_of, safetensors_name, torch_dtype

    for name in DTYPES:
        found = dtype(name)
        if not found.torch_name:
            continue
        kind = torch_dtype(name)
        assert kind.itemsize == found.block_bytes
        assert format_of(kind) == found
        assert safetensors_name(kind) == found.safetensors_name
    with pytest.raises(SpecError, match="torch has no type that holds q8_0"):
        torch_dtype("q8_0")


def test_no_other_module_maps_formats_to_one_another():
    """A dict with two or more of these words as keys, and words or sizes for them, is the table written again."""
    room = Path(manyheads.__file__).parent
    again = []
    for file in sorted(room.rglob("*.py")):
        if file.relative_to(room).as_posix() in ("cost/dtypes.py",):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Dict):
                continue
            keys = [key.value if isinstance(key, ast.Constant) else getattr(key, "attr", "") for key in node.keys]
            values = [
                value.value if isinstance(value, ast.Constant) else getattr(value, "attr", "") for value in node.values
            ]
            sized = [value for value in values if value in WORDS or (isinstance(value, int) and value in (1, 2, 4))]
            if len(WORDS & {key for key in keys if isinstance(key, str)}) > 1 and len(sized) > 1:
                again.append(f"{file.relative_to(room)}:{node.lineno}")
    assert not again
