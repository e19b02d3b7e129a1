"""What MODEL is: existing paths first, what looks like a path never a hub id, then words, names and ids."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.checkpoints.locate import Located, locate
from manyheads.errors import CheckpointError

GGUF = b"GGUF" + (3).to_bytes(4, "little") + bytes(16)
SAFETENSORS = (2).to_bytes(8, "little") + b"{}"
CONFIG = json.dumps({"model_type": "llama"}).encode()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refusal(text):
    with pytest.raises(CheckpointError) as caught:
        locate(text)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message


@pytest.mark.parametrize(
    ("content", "kind"),
    [(GGUF, "gguf"), (SAFETENSORS, "safetensors"), (CONFIG, "config"), (b"\xef\xbb\xbf \n{}", "config")],
)
@pytest.mark.parametrize("name", ["file", "file.json", "file.gguf", "file.safetensors", "file.bin"])
def test_a_file_is_what_it_contains(here, content, kind, name):
    (here / name).write_bytes(content)
    assert locate(name) == Located(kind, name)
    assert locate(f"./{name}") == Located(kind, f"./{name}")


def test_a_header_whose_length_looks_like_a_brace_is_no_json(here):
    (here / "w").write_bytes((0x7B).to_bytes(8, "little") + b"{" + b" " * 121 + b"}")
    assert locate("w").kind == "safetensors"


@pytest.mark.parametrize(("name", "kind"), [("a.json", "config"), ("a.GGUF", "gguf"), ("a.safetensors", "safetensors")])
@pytest.mark.parametrize("content", [b"", b"[1]", b"\0\0"])
def test_the_ending_decides_where_the_content_is_broken(here, name, kind, content):
    (here / name).write_bytes(content)
    assert locate(name).kind == kind  # the reader then says what is wrong


@pytest.mark.parametrize(
    ("content", "words"), [(b"PK\x03\x04", "torch.save"), (b"hello", "b'hello'"), (b"", "an empty file")]
)
def test_a_file_of_another_kind(here, content, words):
    (here / "pytorch_model.bin").write_bytes(content)
    message = refusal("pytorch_model.bin")
    assert words in message
    assert "a folder with config.json" in message


def test_folders(here):
    for name, inside, kind in [
        ("one", "config.json", "folder"),
        ("two", "model.safetensors", "folder"),
        ("three", "model.safetensors.index.json", "folder"),
        ("four", "model.gguf", "gguf"),
    ]:
        (here / name).mkdir()
        (here / name / "README.md").write_text("")
        (here / name / inside).write_bytes(b"{}")
        expected = os.path.join(name, inside) if kind == "gguf" else name
        assert locate(name) == Located(kind, expected)
    (here / "one" / "model.gguf").write_bytes(GGUF)
    assert locate("one") == Located("folder", "one")
    assert locate("three/model.safetensors.index.json") == Located("folder", "three")


def test_folders_that_are_something_else(here):
    (here / "empty").mkdir()
    assert "it is empty" in refusal("empty")
    for number in range(7):
        (here / f"part-{number}.txt").write_text("")
    message = refusal(".")
    assert "contains 8 entries" in message
    assert "'part-3.txt'" in message
    assert message.endswith("...)")
    for name in ("a.gguf", "b.gguf"):
        (here / "empty" / name).write_bytes(GGUF)
    (here / "split").mkdir()
    for number in (2, 1, 3):
        (here / "split" / f"big-0000{number}-of-00003.gguf").write_bytes(GGUF)
    assert locate("split") == Located("gguf", os.path.join("split", "big-00001-of-00003.gguf"))
    assert "2 .gguf files ('a.gguf', 'b.gguf'); name one of them" in refusal("empty")


def test_what_exists_is_neither_a_census_name_nor_a_hub_id(here):
    (here / "gpt2").mkdir()
    assert "is empty" in refusal("gpt2")
    (here / "org").mkdir()
    (here / "org" / "name").mkdir()
    assert "is empty" in refusal("org/name")
    (here / "org" / "name" / "config.json").write_bytes(CONFIG)
    assert locate("org/name") == Located("folder", "org/name")


def test_a_link_to_nothing_is_not_looked_up_elsewhere(here):
    os.symlink("nowhere", "gpt2")
    assert "no such file" in refusal("gpt2")


@pytest.mark.parametrize(
    "text",
    ["./gpt2", "../gpt2", "/models/gpt2", "~/gpt2", "~nobody-here/gpt2", "models\\gpt2", "config.json",
     "org/config.json", "org/model.safetensors", "org/model.GGUF", "./a (1)", "a(1).json"],
)  # fmt: skip
def test_what_looks_like_a_path_but_is_not_there(here, text):
    assert f"{text}: no such file or folder" in refusal(text)


def test_the_home_folder_is_known(here, monkeypatch):
    monkeypatch.setenv("HOME", str(here))
    (here / "config.json").write_bytes(CONFIG)
    assert locate("~/config.json") == Located("config", str(here / "config.json"))


def test_words_names_and_ids(here):
    sketch = "gqa(4096, 32/8x128, rope=1e4) x 32"
    assert locate(sketch) == Located("spec", sketch)
    assert locate("gpt2") == Located("census", "gpt2")
    assert locate("llama-2-70b") == Located("census", "llama-2-70b")
    for name in ("someone/a-model_1.5", "x/y"):
        assert locate(name) == Located("hub", name)


@pytest.mark.parametrize(
    "text",
    ["qwertyuiop", "a/b/c", "org/", "/".join(["o" * 97, "n"]), "org/na me", "-org/name", "org/name.", "org/na--me",
     "org/na..me", "org/n\u00e4me", "org/na\nme"],
)  # fmt: skip
def test_what_is_nothing(here, text):
    message = refusal(text)
    assert "is not a file here nor a known model" in message
    for accepted in ("config.json", ".gguf", "a spec such as", "manyheads models", "org/name"):
        assert accepted in message


def test_a_slip_of_the_pen_is_answered_with_the_nearest_name(here):
    assert "did you mean" in refusal("lama-2-70bb")
    assert "llama-2-70b" in refusal("lama-2-70bb")


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_no_words(here, text):
    assert "no model was named" in refusal(text)


def test_impossible_paths(here):
    assert "is not a file here" in refusal("a\0b")
    assert "no such file" in refusal("./a\0b")
    assert "is not a file here" in refusal("n" * 5_000)
    os.mkfifo(here / "pipe")
    assert "not a regular file" in refusal("pipe")


@given(st.text(max_size=40))
def test_random_words(text):
    try:
        found = locate(text)
    except CheckpointError as error:
        found = str(error)
        assert len(found.splitlines()) == 1
    else:
        assert found.kind in {"folder", "config", "safetensors", "gguf", "spec", "census", "hub"}


def test_a_known_name_loads_nothing_heavy():
    code = (
        "import sys; from manyheads.checkpoints.locate import locate; assert locate('llama-2-70b').kind == 'census';"
        "bad = {'torch', 'numpy', 'transformers', 'huggingface_hub', 'mmap', 'difflib'} & set(sys.modules);"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
