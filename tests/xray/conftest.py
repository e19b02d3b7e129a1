"""One thread of torch for all tests of the x-ray."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="session", autouse=True)
def _one_thread(one_thread: None) -> None:
    """For every test of this folder."""
