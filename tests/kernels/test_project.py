"""Vectors times a matrix a head, against float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from manyheads.errors import SpecError  # noqa: E402
from manyheads.kernels.project import times, times_transposed  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 3, 16])
@pytest.mark.parametrize("inner", [1, 37])
def test_in_fp32_whatever_the_matrix_is_stored_in(dtype, rows, inner):
    """Views with a stride between heads and between rows, as the parts of MLA's one matrix are."""
    draw = torch.Generator().manual_seed(rows + inner)
    stored = torch.randn(5, inner + 9, 72, generator=draw).to(dtype)
    w = stored[:, 4 : 4 + inner, :40]
    x, wide = torch.randn(5, rows, inner, generator=draw), torch.randn(5, rows, 40, generator=draw)
    found, expected = times(x, w), x.double() @ w.double()
    assert torch.allclose(found.double(), expected, atol=2e-5)
    turned, of_it = times_transposed(wide, w), wide.double() @ w.double().mT
    assert torch.allclose(turned.double(), of_it, atol=2e-5)
    assert (found.dtype, turned.shape) == (torch.float32, (5, rows, inner))


def test_what_does_not_fit_is_refused():
    with pytest.raises(SpecError, match=r"\(2, 1, 8\) on cpu do not fit matrices \(2, 6, 40\)"):
        times(torch.zeros(2, 1, 8), torch.zeros(2, 6, 40))
    with pytest.raises(SpecError, match="float64"):
        times(torch.zeros(2, 1, 6), torch.zeros(2, 6, 40, dtype=torch.float64))
    with pytest.raises(SpecError, match="side by side"):
        times_transposed(torch.zeros(2, 1, 6), torch.zeros(2, 6, 40).mT)
