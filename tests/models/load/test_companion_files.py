"""What lies beside weights and is opened by others: refused where it is no file, or too large for what it is."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

import pytest

from manyheads.checkpoints.json_config import MAX_CONFIG_BYTES
from manyheads.errors import CheckpointError
from manyheads.models.load.companion_files import check_beside, read_beside

pytest.importorskip("transformers")

NAMES = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "adapter_config.json",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(CheckpointError, match=rf"{name}: is not a regular file"):
        check_beside(str(tmp_path))


def test_nor_a_socket_or_a_device(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("merges.txt")
        with pytest.raises(CheckpointError, match=r"merges\.txt: is not a regular file"):
            check_beside(".")
    (tmp_path / "merges.txt").unlink()
    (tmp_path / "vocab.json").symlink_to("/dev/zero")
    with pytest.raises(CheckpointError, match=r"vocab\.json: is not a regular file"):
        check_beside(".")


def test_settings_are_small_and_vocabularies_need_not_be(tmp_path: Path) -> None:
    for name in ("tokenizer.json", "generation_config.json"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(MAX_CONFIG_BYTES + 1)
    with pytest.raises(CheckpointError, match=f"generation_config.json: {MAX_CONFIG_BYTES + 1} bytes; .* at most"):
        check_beside(str(tmp_path))
    (tmp_path / "generation_config.json").unlink()
    check_beside(str(tmp_path))


def test_what_goes_with_a_model_is_read(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    (tmp_path / "merges.txt").symlink_to("gone")  # as a download that was not finished leaves it
    (tmp_path / "other.json").write_bytes(b"{}")
    assert read_beside(str(tmp_path)) == {"tokenizer.json": b"{}"}


def test_a_model_with_a_pipe_beside_it_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    from manyheads.models.load.model import load
    from support.tiny_transformers import build

    build("llama").save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "generation_config.json").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "m" / "generation_config.json")
    model = str(tmp_path / "m")
    with pytest.raises(CheckpointError, match=r"generation_config\.json: is not a regular file"):
        load(model)
    shutil.rmtree(model)
