"""One thread, for the tensors are tiny; and the path is left as it was, whatever was loaded."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _one_thread():
    torch = pytest.importorskip("torch")
    before, path = torch.get_num_threads(), list(sys.path)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
    sys.path[:] = path
