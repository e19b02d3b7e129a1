"""The operator's tests: one thread, and memory that nobody wrote is NaN, so that it cannot pass for a zero."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["*.py"]


@pytest.fixture(autouse=True)
def _torch() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)  # fills torch.empty and new_empty with NaN
    torch.manual_seed(0)
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


@pytest.fixture
def unwritten() -> None:
    """Holds the fixture above to its word."""
    import torch

    assert torch.empty(4).isnan().all()
