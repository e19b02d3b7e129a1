"""300 random requests to the decode kernel against attention in float64; benchmarks/kernel_fuzz.py makes 10,000 of them."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("numba")

from hypothesis import given, settings

from support.kernel_requests import KernelRequest, check, kernel_requests


@settings(max_examples=300)
@given(kernel_requests(sizes=[(40, 72)]))
def test_a_random_request(asked: KernelRequest) -> None:
    check(asked)
