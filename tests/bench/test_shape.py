"""Bytes, FLOPs and the least time of a step, by hand."""

from __future__ import annotations

import pytest

from manyheads.bench.rotation import Buffer, Rotation
from manyheads.bench.shape import DTYPES, Shape
from manyheads.cost.dtypes import dtype as dtype_of
from manyheads.cost.dtypes import kv_dtype
from manyheads.cost.formulas import flops
from manyheads.cost.layer import cache_elements, core_macs, read_bytes
from manyheads.cost.roofline import floor
from manyheads.errors import ManyheadsError


def test_what_a_step_reads_and_multiplies():
    shape = Shape(32, 8, 128, 128, 8192, "bf16")
    assert shape.cache_bytes == 2 * 8 * 8192 * 128 * 2 == 33_554_432
    assert shape.flops == 32 * 8192 * 128 * 4 == 134_217_728
    assert Shape(32, 8, 128, 128, 8192, "fp32").cache_bytes == 67_108_864
    # an int8 cache: a byte an element, and two 16-bit scales a token and head
    assert Shape(32, 8, 128, 128, 8192, "int8").cache_bytes == 16_777_216 + 2 * 8 * 8192 * 2
    assert Shape(128, 1, 576, 512, 10, "int8").cache_bytes == 10 * (576 + 512 + 2 * 2)


def test_int8_bytes_are_those_of_what_is_read():
    """What the formula says is what the tensors of a step hold, scales and all."""
    shape = Shape(8, 4, 32, 24, 64, "int8")
    step = Rotation(Buffer("int8", 1 << 18, seed=0), shape).step(0)
    assert shape.cache_bytes == sum(x.nbytes for x in (step.k, step.v, step.k_scale, step.v_scale))


@pytest.mark.parametrize("kv_heads", [1, 2, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_and_flops_are_those_that_the_price_is_made_of(dtype, kv_heads):
    """The roofline of the bench and the cost of a model are one formula, scale bytes of int8 included."""
    shape = Shape(8, kv_heads, 32, 24, 64, dtype)
    elements = 64 * cache_elements(shape.spec)
    scales = 2 * 64 * kv_heads * dtype_of("fp16").block_bytes if dtype == "int8" else 0
    assert shape.cache_bytes == kv_dtype(dtype).bytes(elements, 0) + scales
    assert shape.cache_bytes == 64 * read_bytes(shape.spec, 1, dtype)
    assert shape.flops == flops(core_macs(shape.spec, 1, 64)[1]) == 2 * 8 * (32 + 24) * 64


def test_keys_and_values_of_two_sizes():
    shape = Shape(128, 1, 576, 512, 8192, "fp32")
    assert shape.cache_bytes == 8192 * (576 + 512) * 4
    assert shape.flops == 2 * 128 * 8192 * (576 + 512)  # 1.14 GMACs


def test_a_prompt_sees_half_of_the_square():
    assert Shape(2, 1, 8, 8, 10, "fp32", queries=10).flops == 2 * 2 * 55 * (8 + 8)
    assert Shape(2, 1, 8, 8, 10, "fp32", queries=3).flops == 2 * 2 * (8 + 9 + 10) * (8 + 8)


def test_the_least_time_is_the_larger_term():
    slow_memory = floor(moved_bytes=1000, flops=100, bandwidth=10.0, peak=10.0)
    assert (slow_memory.seconds, slow_memory.bound_by) == (100.0, "memory")
    slow_products = floor(moved_bytes=1000, flops=100, bandwidth=1000.0, peak=10.0)
    assert (slow_products.seconds, slow_products.bound_by) == (10.0, "compute")


def test_what_a_copy_takes():
    shape = Shape(32, 8, 128, 128, 1024, "bf16")
    assert shape.copy_bytes() == 2 * 8 * 1024 * 128 * 2
    assert shape.copy_bytes(heads=32) == 4 * shape.copy_bytes()
    assert shape.copy_bytes(width=4) == 2 * shape.copy_bytes()


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((32, 5, 8, 8, 4, "fp32"), "32 query heads cannot share 5 KV heads evenly"),
        ((32, 8, 8, 8, 4, "fp8"), "'fp8' is not one of fp32, bf16, fp16, int8"),
    ],
)
def test_what_is_no_shape(sizes, said):
    with pytest.raises(ManyheadsError, match=said):
        Shape(*sizes)
