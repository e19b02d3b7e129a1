"""`manyheads prune`: what it prints and writes, its exit statuses, and what it refuses without writing anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from manyheads.cli.main import main

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def run(capsys, *words: object) -> tuple[int, str, str]:
    status = main(["prune", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def test_by_hand_it_writes_a_model_that_transformers_loads(capsys, here, llama) -> None:
    status, out, err = run(capsys, llama, "--heads", "0:0,1;1:2,3", "--tokens", 200, "--output", "out")
    assert status == 0
    assert out.startswith("tiny-llama: 4 of 8 heads removed, named")
    assert "wrote" in out
    assert "comparing its logits with those of the masked model" in err
    model = transformers.LlamaForCausalLM.from_pretrained("out")
    assert (model.config.num_attention_heads, model.config.num_key_value_heads) == (2, 1)
    assert os.listdir(here) == ["out"]


def test_the_object_has_hand_counted_bytes(capsys, here, llama) -> None:
    status, out, _ = run(capsys, llama, "--heads", "0:0,1", "--tokens", 200, "--json")
    told = json.loads(out)
    assert status == 0
    assert told["schema"] == "manyheads.prune/1"
    assert told["removed"] == ["0:0", "0:1"]
    assert told["bytes_before"]["cache_a_token"] == 2 * 2 * (8 + 8) * 4
    forms = {form["form"]: form for form in told["forms"]}
    assert forms["uniform"]["weights"] is None
    assert "layer 1 of the decoder still needs all 4 heads and 2 key/value heads" in forms["uniform"]["why"]
    assert forms["padded"]["zeros"] == 2
    # Two query heads of q and o, one key/value head of k and v, each 8 x 32.
    assert told["bytes_before"]["weights"] - forms["compact"]["weights"] == (2 * 2 + 2) * 8 * 32 * 4
    assert forms["compact"]["cache_a_token"] == 3 * (8 + 8) * 4
    assert told["losses"]["before"] == pytest.approx(5.95, abs=0.1)  # ln 384, what a random model is surprised by
    assert told["written"] is None
    assert os.listdir(here) == []


def test_by_budget_it_chooses_on_one_half_and_judges_on_the_other(capsys, here, llama) -> None:
    words = (llama, "--budget", "50%", "--whole-groups", "--rounds", 2, "--tokens", 400, "--compare-init", "--json")
    status, out, _ = run(capsys, *words)
    told = json.loads(out)
    assert status == 0
    assert told["heads_removed"] == 4
    assert all(len(layer["new"]) == 2 and layer["kv_heads_needed"] == 1 for layer in told["layers"])
    assert 100 <= told["losses"]["tokens"] <= 300
    assert set(told["losses"]["init"]) == {"seed", "before", "after_same_heads", "after_own_heads"}
    assert run(capsys, *words)[1] == out  # the same each time


def test_an_encoder_is_judged_on_masked_tokens(capsys, here, tmp_path) -> None:
    folder = tiny_models.save("bert", tmp_path / "bert")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"mask_token": "</s>"})
    tokenizer.save_pretrained(folder)
    status, out, _ = run(capsys, folder, "--budget", 2, "--tokens", 300, "--rounds", 1, "--json")
    told = json.loads(out)
    assert status == 0
    assert (told["losses"]["objective"], told["losses"]["unit"]) == ("hidden tokens", "nats a hidden token")
    assert told["losses"]["before"] == pytest.approx(5.95, abs=0.2)  # log 384, of a model that knows nothing
    assert told["heads_removed"] == 2


def test_a_model_without_a_language_head_is_judged_by_its_drift(capsys, here, tmp_path) -> None:
    folder = tiny_models.save("bert", tmp_path / "bert")
    transformers.AutoModel.from_pretrained(folder).save_pretrained(folder)
    words = (folder, "--budget", 2, "--tokens", 300, "--rounds", 1)
    status, out, _ = run(capsys, *words, "--by", "zero", "--json")
    losses = json.loads(out)["losses"]
    assert (status, losses["objective"], losses["before"]) == (0, "drift", 0.0)
    assert losses["after"] > 0
    for more, said in (
        ((), "no first-order score"),
        (("--by", "zero", "--compare-init"), "--compare-init: the model has no language head"),
    ):
        status, out, err = run(capsys, *words, *more)
        assert (status, out) == (2, "")
        assert said in err.splitlines()[-1]


def test_gates_choose_too(capsys, here, llama) -> None:
    status, out, _ = run(capsys, llama, "--gates", 0.5, "--steps", 40, "--tokens", 200, "--json")
    told = json.loads(out)
    assert status == 0
    assert told["chosen"].startswith("gates at a penalty of 0.5")
    assert told["heads_removed"] >= 1


def test_an_encoder_decoder_has_stages(capsys, here, tmp_path) -> None:
    folder = tiny_models.save("t5", tmp_path / "t5")
    heads = ";".join(
        f"{stage}/{layer}:1" for stage, n in (("encoder", 2), ("decoder", 3), ("cross", 3)) for layer in range(n)
    )
    status, out, _ = run(capsys, folder, "--heads", heads, "--output", "out", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["removed"][:2] == ["cross/0:1", "decoder/0:1"]
    assert (told["losses"]["reason"], told["losses"]["objective"]) == ("", "copying")
    assert told["written"]["form"] == "uniform"
    assert transformers.T5ForConditionalGeneration.from_pretrained("out").config.num_heads == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing would be removed: name heads"),
        (("--heads", "0:0", "--assume", "full"), "--assume full"),
        (("--heads", "0:1,1"), "names head 0:1 twice"),
        (("--heads", "5:0"), "there is no layer 5; the model has 2 layers, 0 to 1"),
        (("--heads", "0:4"), "there is no head 4; layer 0 has 4 heads, 0 to 3"),
        (("--heads", "zero"), "not a list of heads"),
        (("--heads", "cross/0:0"), "there is no stage 'cross'"),
        (("--heads", "0:0", "--budget", "2"), "not allowed with"),
        (("--budget", "8"), "8 of 8 heads"),
        (("--budget", "none"), "is not a number of heads"),
        (("--budget", "2", "--by", "magic"), "--by 'magic'"),
        (("--budget", "2", "--rounds", "0"), "--rounds"),
        (("--gates", "-1"), "--gates"),
        (("--heads", "0:0", "--form", "cube"), "--form 'cube'"),
        (("--heads", "0:0", "--form", "uniform", "--output", "out"), "no uniform form"),
        (("--heads", "0:0", "--tokens", "3"), "at least 4 are needed"),
        (("--heads", "0:0", "--text", "missing.txt"), "missing.txt"),
        (("--budget", "2", "--text", "short.txt"), "is 1 token long; at least 2 are needed"),
    ],
)
def test_what_cannot_be_is_one_line_and_writes_nothing(capsys, here, llama, words: tuple[str, ...], said: str) -> None:
    Path("short.txt").write_text("a")
    status, out, err = run(capsys, llama, *words)
    assert (status, out) == (2, "")
    assert said in err.splitlines()[-1]
    assert "Traceback" not in err
    assert os.listdir(here) == ["short.txt"]


def test_models_that_cannot_be_pruned(capsys, here, tmp_path) -> None:
    config: Any = transformers.BloomConfig(hidden_size=32, n_layer=2, n_head=4, vocab_size=64)
    transformers.BloomForCausalLM(config).save_pretrained(tmp_path / "bloom")
    status, out, err = run(capsys, tmp_path / "bloom", "--heads", "0:1", "--output", "out")
    assert (status, out, os.listdir(here)) == (2, "", [])
    assert "does not pass through transformers' AttentionInterface" in err.splitlines()[-1]
    status, _, err = run(capsys, "llama-3.2-1b", "--heads", "0:1")
    assert status == 2
    assert "without weights" in err


def test_a_folder_in_use_is_left_alone(capsys, here, llama) -> None:
    Path("used").mkdir()
    Path("used/mine.txt").write_text("x")
    status, out, err = run(capsys, llama, "--heads", "0:0", "--output", "used")
    assert (status, out) == (2, "")
    assert "is there already" in err
    assert os.listdir("used") == ["mine.txt"]
