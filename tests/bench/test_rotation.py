"""Caches over one buffer: no call in a row the same one, all in memory of their own, every head another."""

from __future__ import annotations

import itertools

import pytest

from manyheads.bench.rotation import Buffer, Rotation
from manyheads.bench.shape import DTYPES, Shape
from manyheads.ops.dtypes import torch_dtype

SHAPE = Shape(8, 4, 16, 12, 64, "bf16")


def test_steps_share_no_memory_and_come_in_turn():
    rotation = Rotation(Buffer("bf16", 10 * SHAPE.cache_bytes, seed=0), SHAPE)
    assert rotation.count == 10
    spans = []
    for _ in range(10):
        step = rotation.next()
        start = step.k.data_ptr()
        assert step.v.data_ptr() == start + step.k.nbytes
        spans.append((start, start + step.k.nbytes + step.v.nbytes))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(spans)))
    assert rotation.next().k.data_ptr() == spans[0][0]


def test_there_is_room_for_two():
    assert Rotation.bytes_for(SHAPE, 100) == 2 * SHAPE.cache_bytes
    assert Rotation.bytes_for(SHAPE, 10**9) == 10**9


@pytest.mark.parametrize("dtype", DTYPES)
def test_shapes_types_and_scales(dtype):
    shape = Shape(8, 4, 16, 12, 64, dtype)
    step = Rotation(Buffer(dtype, 1 << 18, seed=0), shape).next()
    assert step.q.shape == (1, 8, 1, 16)
    assert step.k.shape == (1, 4, 64, 16)
    assert step.v.shape == (1, 4, 64, 12)
    assert step.k.dtype == step.v.dtype == torch_dtype(dtype)
    assert step.k.is_contiguous()
    if dtype == "int8":
        assert step.k_scale.shape == step.v_scale.shape == (1, 4, 64)
        assert not step.k_scale.equal(step.v_scale)
    else:
        assert step.k_scale is None


def test_numbers_that_repeat_do_so_elsewhere_in_each_head(monkeypatch):
    monkeypatch.setattr("manyheads.bench.rotation._TILE_ELEMENTS", 4 * 64 * 16 + 13)
    shape = Shape(8, 8, 16, 16, 64, "fp32")
    step = Rotation(Buffer("fp32", 2 * shape.cache_bytes, seed=0), shape).next()
    heads = [*step.k[0], *step.v[0]]
    assert not any(a.equal(b) for a, b in itertools.combinations(heads, 2))
