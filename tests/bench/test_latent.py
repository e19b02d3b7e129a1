"""One step of latent attention: the absorbed and the expanded path are the same function."""

from __future__ import annotations

import pytest
import torch

from manyheads.bench.latent import (
    DEEPSEEK_V3,
    EXPANDED,
    LatentHeads,
    LatentRotation,
    expected,
    latent,
    latent_paths,
)
from manyheads.bench.reference_check import BOUNDS, error
from manyheads.ops.latent import expanded

SMALL = LatentHeads(6, 16, 4, 12, 12)


def test_deepseek_v3_multiplies_a_hundred_times_more_when_it_expands():
    """137 GMACs against 1.1 at 8,192 rows (arXiv 2412.19437 for the sizes)."""
    absorbed = DEEPSEEK_V3.shape(8192, "fp32").flops / 2
    assert absorbed == 8192 * 128 * (576 + 512) == pytest.approx(1.14e9, rel=0.01)
    assert 8192 * DEEPSEEK_V3.up_elements == pytest.approx(137.4e9, rel=0.01)


def test_the_reference_is_the_published_equation(plan):
    step = LatentRotation(SMALL, 40, "fp32", plan).step(3)
    k_up, v_up = step.parts
    rows = step.rows.double()
    whole = expanded(
        step.q_nope.double(), step.q_rope.double(), rows[..., :12], rows[..., 12:], k_up.double(), v_up.double(),
        scale=20**-0.5,
    )  # fmt: skip
    torch.testing.assert_close(expected(step), whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("number", [0, 1], ids=["ours", "transformers"])
def test_both_paths_are_right(plan, dtype, number):
    path = latent_paths(1)[number]
    if not path.supports(SMALL.shape(100, dtype)):
        pytest.skip(path.supports(SMALL.shape(100, dtype)).reason)
    step = LatentRotation(SMALL, 100, dtype, plan).step(1)
    with torch.inference_mode():
        assert error(path.prepare(step)(), expected(step)) <= BOUNDS[dtype] / 2


def test_rows_and_weights_are_another_layers_each_time(plan):
    rotation = LatentRotation(SMALL, 100, "fp32", plan)
    first, second = rotation.next(), rotation.next()
    assert first.rows.data_ptr() != second.rows.data_ptr()
    assert first.up.data_ptr() != second.up.data_ptr()


def test_a_contest_for_each_type_but_int8(plan):
    contests = latent(SMALL, 100, ("fp32", "int8", "bf16"), plan)
    assert [contest.shape.dtype for contest in contests] == ["fp32", "bf16"]
    for contest in contests:
        assert [result.name for result in contest.results][1] == EXPANDED
        assert contest.ours.agrees
        width = 4 if contest.shape.dtype == "fp32" else 2
        assert contest.moved_bytes == (100 * 16 + 6 * (16 + 12) * 12) * width
        assert contest.flops == 2 * 6 * 100 * (16 + 12) + 2 * 6 * (16 + 12) * 12
