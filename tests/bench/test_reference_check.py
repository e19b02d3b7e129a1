"""The reference against torch's own in float64, and what counts as wrong."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from manyheads.bench.reference_check import error, reference
from manyheads.bench.rotation import Buffer, Rotation
from manyheads.bench.shape import Shape


def step_of(shape):
    return Rotation(Buffer(shape.dtype, 1 << 18, seed=3), shape).next()


@pytest.mark.parametrize("queries", [1, 50])
def test_is_torchs_attention_in_float64(queries):
    step = step_of(Shape(8, 2, 16, 12, 50, "fp32", queries=queries))
    expected = scaled_dot_product_attention(
        step.q.double(), step.k.double(), step.v.double(), is_causal=queries > 1, enable_gqa=True
    )
    torch.testing.assert_close(reference(step), expected, rtol=1e-12, atol=1e-14)


def test_int8_is_held_against_its_own_values():
    step = step_of(Shape(4, 2, 16, 16, 50, "int8"))
    k, v = step.k.double() * step.k_scale[..., None].double(), step.v.double() * step.v_scale[..., None].double()
    expected = scaled_dot_product_attention(step.q.double(), k, v, enable_gqa=True)
    torch.testing.assert_close(reference(step), expected, rtol=1e-12, atol=1e-14)


def test_the_error_is_that_of_the_worst_head():
    expected = torch.ones(1, 3, 1, 4, dtype=torch.float64)
    found = expected.clone()
    found[0, 1] *= 1.25
    assert error(found, expected) == 0.25
    assert error(expected, expected) == 0


def test_what_is_no_answer_is_infinitely_wrong():
    expected = torch.ones(1, 3, 1, 4, dtype=torch.float64)
    assert error(torch.full_like(expected, torch.nan), expected) == float("inf")
    assert error(expected[:, :2], expected) == float("inf")
