"""`manyheads prune`: what it prints and writes, its exit statuses, and what it refuses without writing anything."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from manyheads.cli.main import main
from manyheads.heads.left_out import NotMeasured
from manyheads.heads.pruning.record import FormBytes, LayerPruning, PruningReport, SizesNow, WrittenFolder
from manyheads.heads.pruning.tables import report
from manyheads.models.load.text import Reading, shipped_text
from support import tiny_models

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
    assert set(told["losses"]["init"]) == {"seed", "same_heads", "own_heads"}
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
    status, out, _ = run(capsys, *words, "--importance", "zero", "--json")
    losses = json.loads(out)["losses"]
    assert (status, losses["objective"], losses["before"]) == (0, "drift", 0.0)
    assert losses["after"] > 0
    for more, said in (
        ((), "no first-order score"),
        (("--importance", "zero", "--compare-init"), "--compare-init: the model has no language head"),
    ):
        status, out, err = run(capsys, *words, *more)
        assert (status, out) == (2, "")
        assert said in err.splitlines()[-1]


def test_zeros_are_no_gain_and_the_least_that_would_be_is_named(capsys, here, llama) -> None:
    """4 heads in 2 groups of 2: one of each, or both of one, leave the weights."""
    status, out, _ = run(capsys, llama, "--heads", "0:0", "--tokens", 300)
    lines = " ".join(out.split())
    assert status == 0
    assert lines.startswith("tiny-llama: 1 of 8 heads, named, would become zeros: nothing is smaller")
    assert "the least that would save something: 0:1 too" in lines
    assert lines.endswith(f"Next: manyheads prune {llama} --heads 0:0-1".replace("0:0-1", "0:0,1"))
    status, out, _ = run(capsys, llama, "--heads", "0:0,3", "--tokens", 300, "--json")
    told = json.loads(out)
    assert (status, told["note"]) == (0, "")
    compact = next(form for form in told["forms"] if form["form"] == "compact")
    assert told["bytes_before"]["weights"] - compact["weights"] == 2 * 2 * 8 * 32 * 4  # q and o of two heads


def test_a_form_that_saves_nothing_names_the_one_that_does(capsys, here, llama) -> None:
    status, out, _ = run(capsys, llama, "--heads", "0:0-1", "--tokens", 200, "--output", "out")
    lines = " ".join(out.split())
    assert status == 0
    saved = (2 * 2 + 2) * 8 * 32 * 4
    assert f"this form saves nothing; --form compact saves {saved:,} bytes of weights and 64 of cache a token" in lines
    status, out, _ = run(capsys, llama, "--heads", "0:0-1", "--tokens", 200)
    assert out.splitlines()[-1] == f"Next: manyheads prune {llama} --heads 0:0,1 --form compact --output smaller"


def test_losses_have_windows_and_an_interval_that_the_object_has_too(capsys, here, llama) -> None:
    words = (llama, "--heads", "0:0-1", "--tokens", 1400)
    status, out, _ = run(capsys, *words, "--json")
    losses = json.loads(out)["losses"]
    assert status == 0
    assert losses["windows"] == 11  # of the 64 tokens that it reads at most, every other one
    low, high = losses["interval"]
    assert low < losses["change"] < high
    assert losses["change"] == pytest.approx(losses["after"] - losses["before"])
    lines = " ".join(run(capsys, *words)[1].split())
    assert f"{losses['change']:+.4f} {low:+.4f} to {high:+.4f}" in lines
    assert f"in {losses['windows']} windows" in lines
    status, out, _ = run(capsys, llama, "--heads", "0:0-1", "--tokens", 60)
    assert status == 0
    assert "in 1 window" in " ".join(out.split())
    assert "one window of text, so there is no interval" in " ".join(out.split())


def test_what_is_written_tells_the_loss_that_is_printed(capsys, here, llama) -> None:
    told = json.loads(run(capsys, llama, "--budget", 2, "--rounds", 1, "--tokens", 400, "--output", "out", "--json")[1])
    written = json.loads(Path("out/pruning.json").read_text())
    assert {key: written[key] for key in ("chosen", "rounds", "losses")} == {
        key: told[key] for key in ("chosen", "rounds", "losses")
    }
    assert written["losses"]["text_sha256"] == shipped_text().sha256
    assert (
        f"{told['losses']['before']:.4f} before, {told['losses']['after']:.4f} after"
        in Path("out/README.md").read_text()
    )


def test_heads_that_went_before_are_counted(capsys, here, llama) -> None:
    assert run(capsys, llama, "--heads", "0:0-1;1:2-3", "--tokens", 200, "--output", "out")[0] == 0
    status, out, _ = run(capsys, "out", "--heads", "0:2", "--tokens", 200)
    lines = " ".join(out.split())
    assert status == 0
    assert lines.startswith("out: 1 of 4 heads would be removed, named")
    assert "4 heads went in earlier prunings; heads keep the numbers that they had before the first" in lines


def test_a_budget_that_cannot_be_met_is_refused_before_the_model_is_loaded(capsys, here, llama, monkeypatch) -> None:
    monkeypatch.setattr("manyheads.heads.pruning.run.load", lambda *_, **__: pytest.fail("it was loaded"))
    for words, said in (
        (("--budget", 0), "--budget '0' is 0 of 8 heads; expected from 1 to 6: one of each layer stays"),
        (("--budget", "70%", "--whole-groups"), "expected from 2 to 4 in groups of 2: one of each layer stays"),
    ):
        status, out, err = run(capsys, llama, *words)
        assert (status, out) == (2, "")
        assert said in err.splitlines()[-1]


def test_progress_has_counts(capsys, here, llama, monkeypatch) -> None:
    monkeypatch.setattr("manyheads.heads.progress._SECONDS_BETWEEN_WORDS", 0.0)
    _, out, err = run(capsys, llama, "--budget", 2, "--importance", "zero", "--rounds", 1, "--tokens", 200)
    assert out.startswith("tiny-llama: 2 of 8 heads")
    assert "greedy by ablation to zero" in out
    assert "round 1: ablation to zero of 8 heads" in err
    assert "16 of 16 passes" in err  # 8 heads on 2 windows
    assert "40 of 40 steps" in run(capsys, llama, "--gates", 0.5, "--steps", 40, "--tokens", 200)[2]
    _, out, err = run(capsys, llama, "--gates", 0.5, "--steps", 20, "--tokens", 200)
    assert out == ""
    assert "try 280 steps more: --steps 300" in err.splitlines()[-1]


def test_the_size_of_a_quantised_file_stands_beside_what_it_becomes() -> None:
    """100 bytes in the file, 450 in fp32, 400 after pruning: 4.0 times the file."""
    forms = (
        FormBytes("uniform", None, None, None, "layer 1 is full"),
        *(FormBytes(name, size, 8, 0, "") for name, size in (("padded", 450), ("compact", 400))),
    )
    written = WrittenFolder(
        folder="out", form="uniform", why="", model_type="llama", tensor_bytes=400, predicted_bytes=400, largest_difference=0.0,
        largest_difference_float32=5e-3, largest_logit=31.2, checked_in="float64",
    )  # fmt: skip
    found = PruningReport(
        schema="", model="M", source="/far/away/M.gguf", chosen="named", rounds=0, heads_before=8, heads_removed=1,
        removed=("0:0",), gone_before=(), gone_earlier=0, staged=False,
        layers=(LayerPruning("decoder", 0, (0,), (0,), (1,), 1, 1),), weight_dtype="fp32", bytes_before=SizesNow(450, 8),
        stored_bytes=100, stored_dtype="q4_1", forms=forms, note="", heads="0:0", heads_that_save="", typed="manyheads prune",
        losses=NotMeasured("no text"), written=written,
    )  # fmt: skip
    made = report(found)
    saves = made.tables[1]
    assert saves.rows[0] == ("the file", "100 B", "", "q4_1, as it lies there")
    assert "is 4.0 times the file that it comes from" in saves.notes[0]
    assert "in float64, and by 5.0e-03 in float32, whose rounding this model magnifies" in made.notes[-1]
    unwritten = report(dataclasses.replace(found, written=None))
    assert unwritten.next_command == "manyheads prune --heads 0:0 --form compact --output smaller"  # no path of ours


def test_gates_choose_too(capsys, here, llama) -> None:
    status, out, _ = run(capsys, llama, "--gates", 0.5, "--steps", 40, "--tokens", 200, "--json")
    told = json.loads(out)
    assert status == 0
    assert told["chosen"].startswith("gates at a penalty of 0.5")
    assert told["heads_removed"] >= 1


@pytest.mark.parametrize("family", ["gemma2", "bert", "t5", "whisper"])
def test_named_heads_need_no_tokenizer(capsys, here, tmp_path, family: str) -> None:
    """Transformers makes a tokenizer of no files for these: a loss on its tokens would be a number about nothing."""
    folder = tiny_models.save(family, tmp_path / family, tokenizer=False)
    status, out, _ = run(capsys, folder, "--heads", "0:0,1", "--output", "out", "--form", "padded", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["losses"]["reason"].startswith("no tokenizer: the model came without the files of one")
    assert told["written"]["folder"] == str(here / "out")
    status, _, err = run(capsys, folder, "--budget", 2)
    assert status == 2
    assert "so name the heads with --heads" in err


def test_named_heads_go_where_the_tokenizer_makes_too_little_of_our_text(capsys, here, llama, monkeypatch) -> None:
    """Of a text that nobody asked for. One that was asked for has to be text."""
    monkeypatch.setattr("manyheads.models.load.text.shipped_text", lambda: Reading("ours", "a", "0" * 64, shipped=True))
    assert "no loss was measured: ours is 1 token long" in run(capsys, llama, "--heads", "0:0")[1]
    Path("short").write_text("a")
    status, _, err = run(capsys, llama, "--heads", "0:0", "--text", "short")
    assert (status, "short is 1 token long" in err) == (2, True)


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
        (("--heads", "cross/0:0"), "there is no stack 'cross'"),
        (("--heads", "0:0", "--budget", "2"), "not allowed with"),
        (("--budget", "8"), "8 of 8 heads"),
        (("--budget", "none"), "is not a number of heads"),
        (("--budget", "2", "--importance", "magic"), "--importance 'magic'"),
        (("--budget", "2", "--rounds", "0"), "--rounds"),
        (("--gates", "-1"), "--gates"),
        (("--heads", "0:0", "--form", "cube"), "--form 'cube'"),
        (("--heads", "0:0", "--form", "uniform", "--output", "out"), "no uniform form"),
        (("--heads", "0:0", "--tokens", "3"), "is not a number of tokens from 4 to"),
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
