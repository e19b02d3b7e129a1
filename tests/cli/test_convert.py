"""`manyheads convert`: what it prints and writes, its exit statuses, and what it refuses without writing anything."""

from __future__ import annotations

import json
import os

import pytest

from manyheads.cli.main import main
from support import tiny_models

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["convert", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def test_it_writes_a_model_that_transformers_loads(capsys, here, llama) -> None:
    status, out, err = run(capsys, llama, "--kv-heads", 1, "--windows", 4, "--output", "out")
    assert status == 0, err
    assert out.startswith("tiny-llama: 2 to 1 KV heads for 4 query heads, method closed")
    model = transformers.LlamaForCausalLM.from_pretrained("out")
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (4, 1)
    assert sorted(os.listdir("out"))[:3] == ["README.md", "config.json", "conversion.json"]
    told = json.loads((here / "out" / "conversion.json").read_text())
    assert told["schema"] == "manyheads.convert/1"
    assert told["written"]["largest_difference"] < 1e-4
    assert {each["kind"] for each in told["losses"]} == {"like the calibration text", "foreign"}
    card = (here / "out" / "README.md").read_text()
    assert "1 key/value head in place of 2" in card
    assert all(f"{each['ratio']:.3f}" in card for each in told["losses"])


def test_the_object_has_hand_counted_bytes(capsys, here, llama) -> None:
    """2 layers; a KV head is 8 wide and reads 32: k and v lose 8 x 32 each."""
    status, out, _ = run(capsys, llama, "--kv-heads", 1, "--method", "mean", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["weight_bytes_before"] - told["weight_bytes"] == 2 * 2 * 8 * 32 * 4
    assert told["cache"]["a_token_before"] == 2 * 2 * (8 + 8) * 2
    assert told["cache"]["a_token"] == 2 * 1 * (8 + 8) * 2
    assert told["cache"]["held_before"] == 2 * told["cache"]["held"]
    assert told["written"] is None
    assert os.listdir(here) == []


def test_as_many_heads_as_there_are_is_the_model_itself(capsys, here, llama) -> None:
    status, out, _ = run(capsys, llama, "--kv-heads", 2, "--json")
    assert status == 0
    assert all((each["ratio"], each["kl"]) == (1.0, 0.0) for each in json.loads(out)["losses"])


def test_too_large_a_loss_exits_1_and_writes_nothing(capsys, here, llama) -> None:
    words = (llama, "--kv-heads", 1, "--method", "first", "--max-ratio", "0.5", "--output", "out")
    status, out, _ = run(capsys, *words)
    assert status == 1
    assert "is above --max-ratio 0.5: nothing was written; --accept-loss writes it" in " ".join(out.split())
    assert os.listdir(here) == []
    assert run(capsys, *words, "--accept-loss")[0] == 0
    assert os.listdir(here) == ["out"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "say how many key/value heads"),
        (["--kv-heads", "3"], "3 KV heads for 4 query heads and 2 KV heads; valid: 1, 2, 4"),
        (["--kv-heads", "8"], "8 KV heads for 4 query heads"),
        (["--kv-heads", "0"], "--kv-heads '0'"),
        (["--kv-heads", "1", "--method", "magic"], "--method 'magic'"),
        (["--kv-heads", "1", "--text", "empty.txt"], "empty"),
        (["--kv-heads", "1", "--text", "latin.txt"], "no UTF-8"),
        (["--kv-heads", "1", "--text", "tiny.txt"], "one block, so nothing of it can be held out"),
        (["--kv-heads", "1", "--output", "taken"], "is there already"),
        (["--kv-heads", "1", "--max-ratio", "-1"], "--max-ratio '-1'"),
    ],
)
def test_wrong_input_is_one_line_and_nothing_is_written(capsys, here, llama, words, said) -> None:
    (here / "empty.txt").write_text("")
    (here / "latin.txt").write_bytes("Ä".encode("latin-1") * 99)
    (here / "tiny.txt").write_text("two words")
    (here / "taken").mkdir()
    (here / "taken" / "file").write_text("x")
    before = sorted(os.listdir(here))
    status, out, err = run(capsys, llama, *words)
    assert (status, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert sorted(os.listdir(here)) == before


def test_a_model_of_few_positions_is_asked_no_longer_texts(capsys, here) -> None:
    """GPT-2: a class without a count of KV heads, so they are repeated, and the report says that nothing is saved."""
    folder = tiny_models.save("gpt2", here / "gpt2")
    status, out, err = run(
        capsys, folder, "--kv-heads", 1, "--windows", 4, "--accept-loss", "--output", "out", "--json"
    )
    assert status == 0, err
    told = json.loads(out)
    assert {each["small_cache"] for each in told["hosts"]} == {False}
    assert told["weight_bytes"] == told["weight_bytes_before"]
    assert transformers.GPT2LMHeadModel.from_pretrained("out").config.n_head == 4


def test_attention_without_kv_heads_is_refused(capsys, here) -> None:
    folder = tiny_models.save("deepseek_v3", here / "mla")
    status, _, err = run(capsys, folder, "--kv-heads", 1)
    assert status == 2
    assert "mla, which keeps no key/value heads" in err
