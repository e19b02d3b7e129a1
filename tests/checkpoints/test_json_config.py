"""The strict reader of JSON objects: what it takes, and one line for each thing that it does not."""

import json
import math
import os
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyheads.checkpoints import files
from manyheads.checkpoints.json_config import MAX_CONFIG_BYTES, load_json_object, parse_json_object
from manyheads.errors import CheckpointError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"type": "linear", "factor": 2.0},
    "tie_word_embeddings": False,
    "pad_token_id": None,
}


def refusal(path):
    with pytest.raises(CheckpointError) as caught:
        load_json_object(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    return message


def written(tmp_path, raw):
    path = tmp_path / "config.json"
    path.write_bytes(raw if isinstance(raw, bytes) else raw.encode())
    return path


def test_reads_what_json_reads(tmp_path):
    assert load_json_object(written(tmp_path, json.dumps(LLAMA, indent=2))) == LLAMA
    assert load_json_object(str(written(tmp_path, b"\xef\xbb\xbf" + json.dumps(LLAMA).encode()))) == LLAMA


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ("", ["is empty", "expected a JSON object"]),
        ("  \n", ["is empty"]),
        ("{\n  'a': 1}", ["line 2 column 3"]),
        ('{"a": 1,\n "b" 2}', ["line 2 column 6"]),
        ('{"a": 1} x', ["line 1 column 10"]),
        ("[1, 2]", ["is a list", "not an object"]),
        ('"llama"', ["is a string"]),
        ("3", ["is a number"]),
        ("NaN", ["is a number"]),
        ("true", ["is a boolean"]),
        ("null", ["is null"]),
        (b'{"a": "\xff"}', ["not UTF-8", "byte 7", "0xff"]),
        ('{"a": 1}'.encode("utf-16"), ["UTF-16"]),
        ('{"hidden_size": 1, "b": {"x": 1}, "hidden_size": 2}', ["'hidden_size'", "twice"]),
        ('{"text_config": {"head_dim": 1, "head_dim": 2}}', ["'head_dim'", "twice"]),
        ('{"text_config": {"rope_theta": NaN}}', ["'text_config.rope_theta'", "NaN", "finite"]),
        ('{"layers": [1, {"eps": -Infinity}]}', ["'layers.1.eps'", "-Infinity"]),
        ('{"rope_theta": Infinity}', ["'rope_theta'", "Infinity"]),
        ('{"rope_theta": 1e999}', ["'rope_theta'", "1e999"]),
        ('{"hidden_size": 1' + "0" * 39 + "}", ["'hidden_size'", "40 digits"]),
        ('{"hidden_size": 1' + "0" * 100_000 + "}", ["'hidden_size'", "100001 digits"]),
        ('{"a": ' * 70 + "1" + "}" * 70, ["nested too deeply", "64"]),
        ('{"a":' * 200_000, ["nested too deeply", "64"]),
        ('{"a":' + "[" * 200_000, ["nested too deeply", "64"]),
        ('{"name": "\\ud800"}', ["surrogate"]),
        (b"PK\x03\x04\xff\xff", ["not UTF-8", "torch.save"]),
    ],
)
def test_refuses_in_one_line(tmp_path, raw, words):
    path = written(tmp_path, raw)
    message = refusal(path)
    assert message.startswith(f"{path}: ")
    for word in words:
        assert word in message


def test_infinity_is_taken_where_published_configs_mean_it(tmp_path):
    # Mamba-2 hybrids (bamba, granitemoehybrid, nemotron_h) publish "time_step_limit": [0.0, Infinity]
    found = load_json_object(written(tmp_path, '{"text_config": {"time_step_limit": [0.0, Infinity]}}'))
    assert found == {"text_config": {"time_step_limit": [0.0, math.inf]}}
    assert "NaN" in refusal(written(tmp_path, '{"time_step_limit": [0.0, NaN]}'))
    assert "-Infinity" in refusal(written(tmp_path, '{"time_step_limit": [-Infinity, 1.0]}'))


def test_large_but_published_integers_are_kept(tmp_path):
    unlimited = 1000000000000000019884624838656
    assert (
        load_json_object(written(tmp_path, json.dumps({"model_max_length": unlimited})))["model_max_length"]
        == unlimited
    )


def test_what_is_not_a_file(tmp_path):
    assert "no such file" in refusal(tmp_path / "absent.json")
    assert "is a directory" in refusal(tmp_path)
    assert "not a possible path" in refusal("a\0b")
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")
    assert "cannot be read" in refusal(tmp_path / ("n" * 300))
    assert "cannot be read" in refusal(written(tmp_path, "{}") / "config.json")


def test_a_file_that_may_not_be_read(tmp_path, monkeypatch):
    path = written(tmp_path, "{}")

    def forbidden(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(files, "open", forbidden, raising=False)
    assert "cannot be read (Permission denied)" in refusal(path)


def test_a_path_that_would_break_the_line_is_quoted(tmp_path):
    path = tmp_path / "two\nlines.json"
    path.write_text("[]")
    assert "two\\nlines.json" in refusal(path)


def test_a_huge_file_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "config.json"
    with open(path, "wb") as file:
        file.truncate(MAX_CONFIG_BYTES + 1)
    tracemalloc.start()
    message = refusal(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(MAX_CONFIG_BYTES) in message
    assert peak < 2**20


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def one_line(error):
    assert len(str(error).splitlines()) == 1


def accepts_or_refuses(raw):
    """Only ever a dict or a CheckpointError of one line."""
    try:
        found = parse_json_object(raw, where="here")
    except CheckpointError as error:
        return one_line(error)
    assert isinstance(found, dict)
    return found


@given(st.binary(max_size=200))
def test_random_bytes(raw):
    accepts_or_refuses(raw)


@given(st.dictionaries(st.text(max_size=8), JSON, max_size=5))
def test_agrees_with_json_on_finite_objects(value):
    raw = json.dumps(value)
    finite = "NaN" not in raw and "Infinity" not in raw
    surrogate = any("\ud800" <= letter <= "\udfff" for letter in json.dumps(value, ensure_ascii=False))
    found = accepts_or_refuses(raw.encode())
    if finite and not surrogate:
        assert found == json.loads(raw)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_mutated_configs(data):
    raw = bytearray(json.dumps(LLAMA).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        match data.draw(st.sampled_from(["set", "drop", "cut", "insert"])):
            case "set":
                raw[at] = data.draw(st.integers(0, 255))
            case "drop":
                del raw[at : at + data.draw(st.integers(1, 9))]
            case "cut":
                del raw[max(at, 1) :]
            case "insert":
                raw[at:at] = data.draw(st.sampled_from([b"NaN", b"[", b"{", b'"', b"9" * 50, b"\\ud800", b"\0"]))
        raw = raw or bytearray(b"{")
    accepts_or_refuses(bytes(raw))


@pytest.mark.parametrize("unit", [b"[],", b"{},", b'"a",', b"1,", b"1.5,", b'{"a":0},'])
def test_memory_stays_in_proportion_to_the_file(unit):
    raw = b'{"a": [' + unit * (300_000 // len(unit)) + b"0]}"
    tracemalloc.start()
    assert parse_json_object(raw, where="here")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * len(raw)
