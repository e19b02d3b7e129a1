"""What the tests of real models share: one thread, folders of tiny models made once, and SmolLM2 loaded once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiny_models

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny model by the name of its family, with a tokenizer."""
    root = tmp_path_factory.mktemp("tiny")

    def folder(family: str) -> Path:
        path = root / family
        return path if path.exists() else tiny_models.save(family, path)

    return folder


@pytest.fixture(scope="session")
def smollm2(smollm2_file: str, model_cache: Path):
    """The demo model, loaded once for all tests."""
    from manyheads.checkpoints import open_model
    from manyheads.checkpoints.locate import locate
    from manyheads.models.load import load_model

    before = os.environ.get("MANYHEADS_CACHE")
    os.environ["MANYHEADS_CACHE"] = str(model_cache)
    try:
        stack = open_model(smollm2_file).stack
        return stack, load_model(locate(smollm2_file), stack)
    finally:
        os.environ.pop("MANYHEADS_CACHE")
        if before is not None:
            os.environ["MANYHEADS_CACHE"] = before
