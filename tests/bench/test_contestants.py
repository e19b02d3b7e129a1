"""Every path computes the function: at small sizes, against float64, in every type that it says it supports."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from manyheads.bench import peers
from manyheads.bench.contestants import decode_paths, prefill_paths
from manyheads.bench.paths import OURS, STOCK
from manyheads.bench.peers import EAGER, ONNXRUNTIME
from manyheads.bench.reference_check import BOUNDS, error, reference
from manyheads.bench.rotation import Buffer, Rotation
from manyheads.bench.shape import DTYPES, Shape

PATHS = {path.name: path for path in decode_paths(1)}
PREFILLS = {path.name: path for path in prefill_paths(1)}
SHAPES = [Shape(8, kv_heads, 16, 16, 100, "fp32") for kv_heads in (8, 2, 1)]


def judged(path, shape) -> float | None:
    """Its error, or None where it does not support the shape."""
    if not path.supports(shape):
        assert path.supports(shape).reason
        return None
    step = Rotation(Buffer(shape.dtype, 1 << 20, seed=1), shape).next()
    expected = reference(step)
    with torch.inference_mode():
        return error(path.prepare(step)(), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape.kv_heads} KV heads")
@pytest.mark.parametrize("name", PATHS)
def test_a_step(name, shape, dtype):
    found = judged(PATHS[name], replace(shape, dtype=dtype))
    if found is not None:
        assert found <= BOUNDS[dtype] / 2


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", PREFILLS)
def test_a_prompt(name, dtype):
    found = judged(PREFILLS[name], Shape(8, 2, 16, 16, 70, dtype, queries=70))
    assert found is not None
    assert found <= BOUNDS[dtype] / 2


def test_what_each_takes():
    taken = {name: {d for d in DTYPES if path.supports(replace(SHAPES[1], dtype=d))} for name, path in PATHS.items()}
    pytest.importorskip("onnxruntime")
    assert taken[OURS] == {"fp32", "bf16", "fp16", "int8"}
    assert taken[STOCK] == taken[EAGER] == {"fp32", "bf16", "fp16"}
    assert taken[ONNXRUNTIME] == {"fp32", "fp16"}


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        ({"onnx"}, "onnx is not installed: pip install onnx"),
        ({"onnxruntime", "onnx"}, "onnxruntime and onnx are not installed: pip install onnxruntime onnx"),
    ],
)
def test_what_is_absent_is_named_with_the_command_that_brings_it(monkeypatch, gone, said):
    monkeypatch.setattr(peers, "find_spec", lambda module: None if module in gone else module)
    assert PATHS[ONNXRUNTIME].supports(SHAPES[0]).reason == said
    monkeypatch.setattr(peers, "find_spec", lambda module: None)
    assert PATHS[EAGER].supports(SHAPES[0]).reason == "transformers is not installed: pip install transformers"
    assert peers.missing("llama_cpp") == "llama-cpp-python is not installed: pip install llama-cpp-python"


def test_onnxruntime_leaves_the_cache_as_it_was():
    """It writes the newest token where that already stands; a copy of the cache would be another comparison."""
    pytest.importorskip("onnxruntime")
    step = Rotation(Buffer("fp32", 1 << 20, seed=1), SHAPES[1]).next()
    before = step.k.clone(), step.v.clone()
    PATHS[ONNXRUNTIME].prepare(step)()
    assert step.k.equal(before[0])
    assert step.v.equal(before[1])


def test_a_path_that_would_copy_too_much_says_so():
    huge = Shape(64, 1, 128, 128, 1 << 20, "fp32")
    for name in (EAGER, "torch SDPA, KV heads repeated"):
        assert "it would copy 64.00 GiB" in PATHS[name].supports(huge).reason
    assert PATHS[STOCK].supports(huge)
