"""The Hadamard rotation of keys before they are rounded: what it is, that products stay, and that outliers cost less."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from manyheads.layer.caches.storage import quantised  # noqa: E402
from manyheads.ops.hadamard import hadamard_rotate  # noqa: E402


def test_of_two_and_of_four_elements_by_hand() -> None:
    assert torch.allclose(hadamard_rotate(torch.tensor([3.0, 1.0])), torch.tensor([4.0, 2.0]) / 2**0.5)
    first = hadamard_rotate(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert torch.allclose(first, torch.tensor([10.0, -2.0, -4.0, 0.0]) / 2)


@pytest.mark.parametrize("size", [1, 2, 7, 40, 64, 80, 96, 128])
def test_products_stay_and_twice_is_nothing(size: int) -> None:
    q, k = torch.randn(2, 3, 5, size, dtype=torch.float64).float().unbind(0)
    assert torch.allclose((hadamard_rotate(q) * hadamard_rotate(k)).sum(-1), (q * k).sum(-1), atol=1e-4)
    assert torch.allclose(hadamard_rotate(hadamard_rotate(q)), q, atol=1e-5)


def test_one_large_element_spoils_the_others_no_more() -> None:
    """An element 30 times as large as the others: the rounding error of the rest falls to less than a third."""
    keys = torch.randn(200, 64, generator=torch.Generator().manual_seed(0))
    keys[:, 5] += 30

    def error(x: torch.Tensor) -> float:
        numbers, scales = quantised(x)
        return float((numbers * scales.float()[:, None] - x).norm())

    assert error(hadamard_rotate(keys)) < error(keys) / 3
