"""The door: whatever a user names, read as a model or refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import manyheads
from manyheads.checkpoints import Checkpoint, open_model, read
from manyheads.errors import CheckpointError, ManyheadsError

CONFIGS = Path(__file__).parent / "fixtures" / "configs"
LLAMA = json.loads((CONFIGS / "llama-old-linear.json").read_text())


def test_a_lone_config_a_folder_and_a_path_object(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    path = folder / "config.json"
    path.write_text(json.dumps(LLAMA))
    by_file, by_folder = open_model(str(path)), open_model(folder)
    assert by_file.stack == by_folder.stack == read(path) == manyheads.read(folder)
    assert by_file.name == by_folder.name == "my-model"
    assert by_folder.config == LLAMA
    assert by_folder.parameters_stored is None


def test_a_config_of_another_name_is_called_by_it() -> None:
    assert open_model(CONFIGS / "gpt2-published.json").name == "gpt2-published"


def test_census_name() -> None:
    found = open_model("llama-2-70b")
    assert isinstance(found, Checkpoint)
    assert (found.name, found.family, found.weight_dtype) == ("llama-2-70b", "llama", "fp16")
    assert found.stack.layers == 80


def test_a_sketch_in_words() -> None:
    pytest.importorskip("manyheads.spec.text")
    found = open_model("gqa(4096, 32/8x128, rope=1e4) x 32")
    assert found.stack.layers == 32
    assert (found.family, found.config, found.weight_dtype) == ("", None, "")


def test_an_existing_path_is_never_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"a folder without config\.json"):
        open_model("org/model")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "[1, 2]", "the JSON is a list"),
        ("config.json", "", "empty"),
        ("config.json", "{", "is not JSON"),
        ("config.json", '{"a": NaN}', "NaN"),
        ("config.json", "{}", "no hidden_size"),
        ("model.safetensors.index.json", '{"weight_map": {}}', "config.json"),
        ("weights.json", '{"weight_map": {"a": "b.safetensors"}}', "an index of weight files"),
    ],
)
def test_files_that_are_no_models(name: str, content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_model(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_weights_without_a_config(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CheckpointError, match=r"no config\.json stands beside them"):
            open_model(path)


@pytest.mark.parametrize("model", [None, 7, b"llama", ["llama"]])
def test_names_are_words_or_paths(model: object) -> None:
    with pytest.raises(CheckpointError, match="named by a string or a path"):
        open_model(model)  # type: ignore[arg-type]


def test_a_revision_belongs_to_a_hub_id() -> None:
    with pytest.raises(CheckpointError, match="belongs to a hub id"):
        open_model("llama-2-70b", revision="main")


def test_assume_reaches_the_reader() -> None:
    path = CONFIGS / "unknown-window.json"
    with pytest.raises(ManyheadsError, match="sliding_window = 32"):
        read(path)
    found = open_model(path, assume="full")
    assert any("full attention is assumed" in note for note in found.notes)


def test_reading_needs_no_torch(python: object) -> None:
    code = """
import sys, manyheads
manyheads.read("deepseek-v3")
print([name for name in ("torch", "numpy", "transformers", "sympy", "numba") if name in sys.modules])
"""
    assert python("-c", code).stdout.strip() == "[]"  # type: ignore[operator]
