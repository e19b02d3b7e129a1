"""One thread of torch for all tests of heads, and SmolLM2 loaded once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def smollm2(smollm2_file: str, model_cache: Path) -> Any:
    """The demo model and its tokenizer, loaded once for all tests."""
    from manyheads.checkpoints import open_model
    from manyheads.checkpoints.locate import locate
    from manyheads.models.load import load_model

    before = os.environ.get("MANYHEADS_CACHE")
    os.environ["MANYHEADS_CACHE"] = str(model_cache)
    try:
        return load_model(locate(smollm2_file), open_model(smollm2_file).stack)
    finally:
        os.environ.pop("MANYHEADS_CACHE")
        if before is not None:
            os.environ["MANYHEADS_CACHE"] = before
