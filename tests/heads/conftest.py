"""One thread of torch for all tests of heads, and the demo model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="session", autouse=True)
def _one_thread(one_thread: None) -> None:
    """For every test of this folder."""


@pytest.fixture(scope="session")
def smollm2(smollm2: Any) -> Any:
    """The demo model with its tokenizer; how it is described is not asked for here."""
    return smollm2[1]
