"""Files that are large and say little: refused or read at once, in the memory of their own bytes."""

from __future__ import annotations

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.checkpoints import gguf_header, open_model, safetensors_header
from manyheads.checkpoints.gguf_header import ArrayInfo, TextInfo, read_gguf
from manyheads.checkpoints.json_config import MAX_CONFIG_BYTES, MAX_VALUES
from manyheads.checkpoints.json_stream import LONGEST_NAME, JsonStream
from manyheads.checkpoints.safetensors_header import INDEX_NAME, read_header, read_sharded
from manyheads.checkpoints.tensors import MAX_TENSORS
from manyheads.errors import CheckpointError

LLAMA = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 128, "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "rope_theta": 1e4,
}  # fmt: skip
ENTRY = b'{"dtype":"U8","shape":[0],"data_offsets":[0,0]}'
STRING, ARRAY = 8, 9


def config(more: bytes) -> bytes:
    return json.dumps(LLAMA).encode()[:-1] + b", " + more + b"}"


def header(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def words(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def gguf(*pairs: bytes, tensors: bytes = b"", count: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, count, len(pairs)) + b"".join(pairs) + tensors + bytes(64)


def array(inner: int, count: int, values: bytes) -> bytes:
    return words(b"x.y") + struct.pack("<IIQ", ARRAY, inner, count) + values


def costs(work: Callable[[], Any], size: int, seconds: float = 5.0) -> Any:
    """What `work` returns or refuses with, within one and a half times the file's `size` and a second or so."""
    began = time.perf_counter()
    tracemalloc.start()
    try:
        found = work()
    except CheckpointError as error:
        found = str(error)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.5 * size + 2**20
    assert time.perf_counter() - began < seconds
    return found


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (b'"x": [' + b"[]," * 3_000_000 + b"1]", f"9000224 bytes; expected a JSON file that holds a model's configuration, at most {MAX_CONFIG_BYTES} bytes"),
        (b'"x": [' + b"[]," * 1_000_000 + b"1]", f"some 2000011 values in 3000224 bytes of JSON; at most {MAX_VALUES} are read"),
        (b'"x": [' + b"{}," * 1_000_000 + b"1]", f"at most {MAX_VALUES} are read"),
        (b",".join(b'"k%d":0' % n for n in range(300_000)), f"at most {MAX_VALUES} are read"),
    ],
    ids=["bytes", "lists", "objects", "keys"],
)  # fmt: skip
def test_a_configuration_is_small(tmp_path: Path, more: bytes, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(config(more))
    assert said in costs(lambda: open_model(path), path.stat().st_size)


def test_a_configuration_of_many_settings_is_read(tmp_path: Path) -> None:
    # As one that says the format of every matrix of 256 experts in 58 layers: 180,000 values.
    extra = {f"model.layers.{n // 768}.mlp.experts.{n}": {"bits": 4, "group": 128, "sym": 1} for n in range(44_544)}
    path = tmp_path / "config.json"
    path.write_bytes(config(b'"quantization_config": ' + json.dumps({"bits": 4, "extra": extra}).encode()))
    assert open_model(path).stack.main.d_model == 64


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b'{"t":' + b"[" + b"[]," * 3_000_000 + b"1]}", "tensor 't': must be an object with dtype, shape, data_offsets"),
        (b'{"t":{"dtype":"U8","shape":[' + b"1," * 3_000_000 + b'1],"data_offsets":[0,1]}}', "of at most 4096 bytes"),
        (b'{"__metadata__":{' + b",".join(b'"k%d":"v"' % n for n in range(500_000)) + b"}}", "maps more than 4096 words"),
        (b'{"' + b"n" * 3_000_000 + b'":' + ENTRY + b"}", f"a name of 3000000 bytes; at most {LONGEST_NAME} are read"),
        (b"{" + b",".join(b'"%d":%s' % (n, ENTRY) for n in range(300_000)) + b"}", f"300000 tensors or more; at most {MAX_TENSORS}"),
    ],
    ids=["lists", "axes", "metadata", "name", "tensors"],
)  # fmt: skip
def test_a_header_of_safetensors_is_refused_where_it_goes_wrong(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(header(text))
    message = costs(lambda: read_header(path), path.stat().st_size)
    assert said in message
    assert len(message) < 400


def test_tensors_are_counted_however_their_entries_are_spelled(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 1000)
    entry = ENTRY.replace(b"data_offsets", b"d\\u0061ta_offsets")
    path = tmp_path / "model.safetensors"
    path.write_bytes(header(b"{" + b",".join(b'"%d":%s' % (n, entry) for n in range(1001)) + b"}"))
    with pytest.raises(CheckpointError, match="1001 tensors or more; at most 1000"):
        read_header(path)


def test_words_of_the_metadata_that_nobody_asks_for_are_passed_over(tmp_path: Path) -> None:
    told = json.dumps({"__metadata__": {"format": "pt", "trained": "x{}" * 1_000_000, "asked": "y" * 5000}}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(header(told))
    assert costs(lambda: read_header(path), len(told)).metadata == {"format": "pt"}
    assert read_header(path, whole=("asked",)).metadata == {"format": "pt", "asked": "y" * 5000}


def test_an_index_is_gone_through_and_not_built(tmp_path: Path, monkeypatch) -> None:
    names = [f"t{n:07d}" for n in range(20_000)]
    (tmp_path / "a.safetensors").write_bytes(header(b'{"t0000000":' + ENTRY + b"}"))
    index = json.dumps({"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(names, "a.safetensors")}).encode()
    (tmp_path / INDEX_NAME).write_bytes(index)
    message = costs(lambda: read_sharded(tmp_path), len(index))
    assert "tensor 't0000001' is not in 'a.safetensors', where the index places it" in message
    monkeypatch.setattr(safetensors_header, "MAX_TENSORS", 1000)
    assert "1001 tensors or more; at most 1000" in costs(lambda: read_sharded(tmp_path), len(index))


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (gguf(words(b"k" * 3_000_000) + struct.pack("<II", 4, 1)), "the key of metadata pair 0 has 3000000 bytes; at most 65535"),
        (gguf(array(ARRAY, 300_000, struct.pack("<IQ", 0, 0) * 300_000)), "'x.y' has 300000 arrays; at most 65536"),
        (gguf(array(STRING, 2_100_000, bytes(16_800_000))), "'x.y' has 2100000 strings; at most 2097152"),
        (gguf(count=300_000, tensors=bytes(7_200_000)), f"300000 tensors in a file of 7200088 bytes; at most {MAX_TENSORS}"),
    ],
    ids=["key", "arrays", "strings", "tensors"],
)  # fmt: skip
def test_a_header_of_gguf_is_refused_where_it_goes_wrong(tmp_path: Path, raw: bytes, said: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    assert said in costs(lambda: read_gguf(path), 0)  # the file itself is mapped


def test_pairs_are_counted(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gguf_header, "_MOST_PAIRS", 3)
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(*(words(b"%d" % n) + struct.pack("<II", 4, n) for n in range(4))))
    with pytest.raises(CheckpointError, match=r"4 metadata pairs in a file of [0-9]+ bytes; at most 3 are read"):
        read_gguf(path)


def test_what_nobody_asks_for_is_stepped_over_and_what_is_kept_is_bounded(tmp_path: Path) -> None:
    long = words(b"x.text") + struct.pack("<I", STRING) + words(b"\xff" * 3_000_000)
    rows = words(b"x.rows") + struct.pack("<IIQ", ARRAY, STRING, 100) + words(b"a" * 30_000) * 100
    many = [words(b"x.%d" % n) + struct.pack("<IIQ", ARRAY, 10, 1000) + bytes(8000) for n in range(200)]
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf(long, rows, *many))
    found = costs(lambda: read_gguf(path), 2**20).metadata
    assert found["x.text"] == TextInfo(3_000_000)
    assert found["x.rows"] == ArrayInfo("string", 100)
    kept = [found[f"x.{n}"] for n in range(200)]
    assert kept == [(0,) * 1000] * 131 + [ArrayInfo("u64", 1000)] * 69  # of 8,000 bytes each, 131 are less than a MiB


# The reader of large objects against the one that builds them

PLAIN = st.one_of(st.text(), st.integers(), st.booleans(), st.none())
FLAT = st.one_of(PLAIN, st.lists(PLAIN), st.dictionaries(st.text(), st.one_of(PLAIN, st.lists(PLAIN))))


@given(st.dictionaries(st.text(), FLAT))
def test_a_stream_names_the_members_that_json_finds(value: dict[str, Any]) -> None:
    raw = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    expected = json.loads(raw)
    stream = JsonStream(raw, "here")
    found = []
    for name in stream.members():
        found.append(name)
        if isinstance(expected[name], str):
            assert stream.text("no text") == expected[name]
        else:
            stream.skip()
    stream.end()
    assert found == list(expected)


@given(st.binary(max_size=60))
def test_a_stream_of_anything_ends_in_one_line(raw: bytes) -> None:
    stream = JsonStream(b'{"' + raw, "here")
    said = "here: "
    try:
        for _ in stream.members():
            stream.skip()
        stream.end()
    except CheckpointError as error:
        said = str(error)
    assert said.startswith("here: ")
    assert "\n" not in said
