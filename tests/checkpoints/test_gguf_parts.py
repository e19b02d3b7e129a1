"""A model split over several GGUF files is one model; a part that is missing or foreign is named."""

import os
import struct

import pytest

from manyheads.checkpoints.gguf_parts import first_part, read_gguf_model
from manyheads.errors import CheckpointError

U16, STRING = 2, 8


def text(words):
    return struct.pack("<Q", len(words)) + words.encode()


def part(number, count, tensors, *, named=None):
    """One part by hand; each tensor is four F32 numbers."""
    pairs = [text("split.no") + struct.pack("<IH", U16, number), text("split.count") + struct.pack("<IH", U16, count)]
    if named:
        pairs.append(text("general.name") + struct.pack("<I", STRING) + text(named))
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(pairs)) + b"".join(pairs)
    for at, name in enumerate(tensors):
        raw += text(name) + struct.pack("<IQIQ", 1, 4, 0, 32 * at)
    return raw + bytes(-len(raw) % 32) + bytes(32 * len(tensors))


def name_of(number, count=3):
    return f"big-{number:05d}-of-{count:05d}.gguf"


@pytest.fixture
def folder(tmp_path):
    for number, tensors in enumerate([[], ["a", "b"], ["c"]]):
        named = "big" if number == 0 else None
        (tmp_path / name_of(number + 1)).write_bytes(part(number, 3, tensors, named=named))
    return tmp_path


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        read_gguf_model(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message


@pytest.mark.parametrize("number", [1, 2, 3])
def test_any_part_leads_to_the_whole(folder, number):
    header = read_gguf_model(folder / name_of(number))
    assert [tensor.name for tensor in header.tensors] == ["a", "b", "c"]
    assert header.metadata["general.name"] == "big"
    assert header.path == str(folder / name_of(1))


def test_a_file_that_is_not_split_is_itself(tmp_path):
    path = tmp_path / name_of(1)
    path.write_bytes(part(0, 1, ["a"]))
    assert [tensor.name for tensor in read_gguf_model(path).tensors] == ["a"]


def test_a_missing_part_is_named(folder):
    os.unlink(folder / name_of(3))
    message = refusal(folder / name_of(1))
    assert "1 of 3 parts are missing" in message
    assert name_of(3) in message


def test_a_foreign_part_and_a_repeated_tensor(folder):
    (folder / name_of(3)).write_bytes(part(1, 3, ["c"]))
    assert "says split.no 1, split.count 3; expected 2 and 3" in refusal(folder / name_of(1))
    (folder / name_of(3)).write_bytes(part(2, 4, ["c"]))
    assert "split.count 4; expected 2 and 3" in refusal(folder / name_of(1))
    (folder / name_of(3)).write_bytes(part(2, 3, ["a"]))
    assert "tensor 'a' is in an earlier part too" in refusal(folder / name_of(1))


def test_a_renamed_part_says_how_it_should_be_called(folder):
    os.rename(folder / name_of(1), folder / "big.gguf")
    assert "one of 3 parts" in refusal(folder / "big.gguf")
    assert "-of-00003.gguf" in refusal(folder / "big.gguf")


def test_the_one_model_of_a_folder():
    assert first_part(["model.gguf"]) == "model.gguf"
    assert first_part([name_of(2), name_of(1), name_of(3)]) == name_of(1)
    assert first_part([name_of(1), "model.gguf"]) is None
    assert first_part([name_of(2)]) is None
    assert first_part(["a.gguf", "b.gguf"]) is None
    assert first_part([]) is None


def test_the_gguf_package_s_own_split(tmp_path):
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    writer = gguf.GGUFWriter(tmp_path / "big.gguf", "llama", split_max_tensors=2)
    for number in range(5):
        writer.add_tensor(f"w{number}", numpy.ones((2, 3), numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    names = sorted(os.listdir(tmp_path))
    assert names == [name_of(1), name_of(2), name_of(3)]
    header = read_gguf_model(tmp_path / first_part(names))
    assert [(tensor.name, tensor.shape) for tensor in header.tensors] == [(f"w{number}", (2, 3)) for number in range(5)]
    assert header.metadata["general.architecture"] == "llama"
