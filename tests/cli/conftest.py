"""What the tests of commands that run models share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import tiny_models


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2 layers of 4 heads in 2 groups of size 8, 32 wide, float32; a module's own, which may add files to it."""
    return tiny_models.save("llama", tmp_path_factory.mktemp("model") / "tiny-llama")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, with the cache elsewhere."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "cache"))
    return folder
