"""`manyheads cost` as a person runs it: what it prints, what it refuses, and what it returns."""

from __future__ import annotations

import json

import pytest

from manyheads.cli.main import main


def run(capsys, *words: str) -> tuple[int, str, str]:
    status = main(["cost", *words])
    out, err = capsys.readouterr()
    return status, out, err


def object_of(capsys, *words: str) -> dict:
    status, out, err = run(capsys, *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def test_the_issue_s_command(capsys):
    own = object_of(capsys, "llama-2-70b", "--context", "128000", "--what-if", "mha")
    assert own["model"] == "llama-2-70b"
    assert own["layers"] == 80
    assert own["parameters"]["total"] == 68_976_648_192
    assert own["kv_cache"]["bytes_per_token"] == 327_680
    assert own["kv_cache"]["bytes"] == 41_943_040_000
    (mha,) = own["what_if"]
    assert mha["name"] == "mha"
    assert mha["kv_cache"]["bytes"] == 335_544_320_000


@pytest.mark.parametrize(("kv_heads", "cache"), [(32, 134_217_728), (8, 33_554_432)])
def test_seed_b_figures_from_words(capsys, kv_heads, cache):
    """facts B12 to B15: 32 heads of 128, 16 bits; a layer's cache and scores at 8,192 and 131,072 tokens."""
    words = f"gqa(4096, 32/{kv_heads}x128) x 1"
    own = object_of(capsys, words, "--context", "8k")
    assert own["kv_cache"]["bytes"] == cache
    assert own["score_bytes_per_layer"] == 4_294_967_296
    assert object_of(capsys, words, "--context", "128k")["score_bytes_per_layer"] == 2**40


def test_deepseek_v3_ideal_and_expanded(capsys):
    cache = object_of(capsys, "deepseek-v3", "--context", "1k")["kv_cache"]
    assert cache["bytes_per_token"] == 70_272
    assert cache["expanded_bytes_per_token"] == 4_997_120


def test_context_in_words_is_said_in_tokens(capsys):
    _, out, _ = run(capsys, "llama-2-70b", "--context", "128k")
    assert "131,072 (128k)" in out
    _, out, _ = run(capsys, "llama-2-70b", "--context", "128000")
    assert "128,000 tokens" in out


def test_several_contexts_are_compared_and_the_last_is_priced(capsys):
    own = object_of(capsys, "llama-2-70b", "--context", "4k,8k,1k")
    assert [row["context"] for row in own["by_context"]] == [4096, 8192, 1024]
    assert own["context"] == 1024


def test_exit_1_when_it_does_not_fit(capsys):
    status, out, err = run(capsys, "llama-2-70b", "--context", "4k", "--memory", "80GB")
    assert (status, err) == (1, "")
    assert "it does not fit" in out
    assert "the one change that would make it fit: --weight-dtype int8" in out
    assert run(capsys, "llama-2-70b", "--context", "4k", "--memory", "160GB")[0] == 0


def test_a_config_file_and_its_folder(capsys, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 96, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
        "num_hidden_layers": 3, "intermediate_size": 100, "vocab_size": 50, "torch_dtype": "float32",
        "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        own = object_of(capsys, str(path))
        assert own["weight_dtype"] == "fp32"
        assert own["context"] == 64
        assert own["kv_cache"]["bytes_per_token"] == 3 * 2 * 20 * 2
        assert own["parameters"]["attention"] == 3 * 2 * (96 * 60 + 96 * 20)


def test_output_goes_to_a_file(capsys, tmp_path):
    target = tmp_path / "price.json"
    status, out, _ = run(capsys, "llama-2-70b", "--json", "--output", str(target))
    assert (status, out) == (0, "")
    assert json.loads(target.read_text())["layers"] == 80


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["llama-2-70b", "--context", "0"], "--context"),
        (["llama-2-70b", "--context", "8q"], "--context '8q' is not a number of tokens"),
        (["llama-2-70b", "--context", "8k,,9k"], "--context '8k,,9k' has '', which is not a number of tokens"),
        (["llama-2-70b", "--context", "-5"], "--context"),
        (["llama-2-70b", "--context", "9999999999999999"], "is not a number of tokens from 1 to 1,000,000,000,000"),
        (["llama-2-70b", "--batch", "0"], "--batch '0'"),
        (["llama-2-70b", "--batch", "1.5"], "--batch '1.5'"),
        (["llama-2-70b", "--batch", "9" * 50], "--batch"),
        (["llama-2-70b", "--memory", "80"], "valid: 80GB"),
        (["llama-2-70b", "--memory", "0GB"], "is nothing"),
        (["llama-2-70b", "--kv-dtype", "fp7"], "unknown dtype 'fp7'"),
        (["llama-2-70b", "--weight-dtype", "x"], "unknown dtype 'x'"),
        (["llama-2-70b", "--what-if", "gqa"], "valid: mha, gqa:N"),
        (["llama-2-70b", "--what-if", "gqa:7"], "64"),
        (["llama-2-70b", "--hardware", "abacus"], "abacus"),
        (["llama-2-70b", "--tensor-parallel", "7"], "64 query heads"),
        (["llama-2-70b", "--assume", "nothing"], "nothing"),
        (["llama-9"], "llama-9"),
        (["./no-such-folder"], "no-such-folder"),
        (["gqa(4096, 32/7x128) x 2"], "32"),
        ([], "MODEL"),
    ],
)
def test_wrong_requests_get_one_line_and_exit_2(capsys, words, message):
    status, out, err = run(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_wrong_requests_write_nothing(capsys, tmp_path):
    target = tmp_path / "price.json"
    target.write_text("before")
    assert run(capsys, "llama-2-70b", "--what-if", "x", "--json", "--output", str(target))[0] == 2
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
