"""Norm-weighted attention against its definition, which builds the tensor that is avoided."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from manyheads.errors import ManyheadsError
from manyheads.heads.statistics import norm_weighted, value_norms


@pytest.mark.parametrize("with_o", [True, False])
def test_o86_as_by_definition(*, with_o: bool) -> None:
    """L = 8, six query heads on two key/value heads: |p v W| over the (b, h, t, s, d) tensor."""
    draw = torch.Generator().manual_seed(0)
    p = torch.rand(2, 6, 8, 8, generator=draw, dtype=torch.float64)
    v = torch.randn(2, 2, 8, 5, generator=draw, dtype=torch.float64)
    o = torch.randn(6, 5, 7, generator=draw, dtype=torch.float64) if with_o else None
    wide = v.repeat_interleave(3, dim=1)
    carried = wide if o is None else torch.einsum("bhsv,hvd->bhsd", wide, o)
    naive = torch.linalg.vector_norm(p[..., None] * carried[:, :, None], dim=-1)
    assert torch.allclose(norm_weighted(p, v, o), naive, atol=1e-12)


def test_o86_nothing_larger_than_a_matrix_is_held() -> None:
    """L = 512, d = 768: the naive tensor would take 9.7 GB; the largest allocation here is one matrix of scores."""
    with torch.profiler.profile(profile_memory=True) as seen, torch.no_grad():
        found = norm_weighted(torch.rand(1, 12, 512, 512), torch.randn(1, 12, 512, 64), torch.randn(12, 64, 768))
    sizes = [abs(event.cpu_memory_usage) for event in seen.events()]
    assert found.shape == (1, 12, 512, 512)
    assert max(sizes) <= 4 * 12 * 512 * 512 + 4096


def test_shapes_that_do_not_fit() -> None:
    with pytest.raises(ManyheadsError, match=r"o \(5, 4, 8\) does not fit values \(1, 2, 3, 4\)"):
        value_norms(torch.zeros(1, 2, 3, 4), torch.zeros(5, 4, 8))
    with pytest.raises(ManyheadsError, match=r"values \(2, 3, 4\); expected \(batch, key/value heads, keys, size\)"):
        value_norms(torch.zeros(2, 3, 4))


@pytest.mark.parametrize(
    ("weights", "v", "o", "said"),
    [
        ((1, 6, 3, 3), (1, 4, 3, 5), None, r"expected \(1, heads, queries, 3\), heads a multiple of 4"),
        ((1, 2, 3, 3), (1, 4, 3, 5), None, "heads a multiple of 4"),
        ((1, 4, 3, 3), (1, 4, 2, 5), None, r"expected \(1, heads, queries, 2\)"),
        ((2, 4, 3, 3), (3, 4, 3, 5), None, r"expected \(3, heads"),
        ((4, 3, 3), (1, 4, 3, 5), None, r"weights \(4, 3, 3\)"),
        ((1, 4, 3, 3), (1, 2, 3, 5), (6, 5, 8), "heads 6 as in o"),
        ((1, 12, 3, 3), (1, 2, 3, 5), (6, 5, 8), "heads 6 as in o"),
    ],
)
def test_weights_that_do_not_fit(
    weights: tuple[int, ...], v: tuple[int, ...], o: tuple[int, ...] | None, said: str
) -> None:
    with pytest.raises(ManyheadsError, match=said):
        norm_weighted(torch.zeros(weights), torch.zeros(v), None if o is None else torch.zeros(o))
