"""One thread of torch for all tests of layers, and one kernel for any number of rows."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


@pytest.fixture(scope="session", autouse=True)
def _one_thread(one_thread: None) -> None:
    """For every test of this folder."""


@pytest.fixture(autouse=True)
def _one_kernel(one_kernel: None) -> None:
    """For every test of this folder."""


@pytest.fixture
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention by torch alone, where what a cache keeps is looked at and not who reads it."""
    from manyheads.kernels import backend

    monkeypatch.setattr(backend, "_NUMBA", False)
