"""`manyheads heads`: what it prints in its four forms, and what it refuses in one line."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from manyheads.cli.main import main
from support import tiny_models

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("numba")

from manyheads.heads.roles import LEAST_EFFECT  # noqa: E402

TEXT = "the cat sat on the mat, and the dog ran after the cat. " * 6


@pytest.fixture
def text(tmp_path: Path) -> str:
    path = tmp_path / "cats.txt"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = main(["heads", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line that a request is refused with."""
    status, out, err = run(capsys, *words)
    assert status == 2
    assert out == ""
    line = err.splitlines()[-1]
    assert line.startswith("manyheads: ")
    assert "Traceback" not in err
    return line


def quick(capsys: pytest.CaptureFixture[str], model: Path, text: str, *words: str) -> tuple[int, str, str]:
    return run(capsys, model, "--text", text, "--no-roles", "--threads", "1", "--window", "40", *words)


def test_a_line_for_each_head_and_the_next_command(capsys: Any, tiny: Any, text: str) -> None:
    status, out, err = quick(capsys, tiny("llama"), text)
    assert status == 0
    assert out.startswith("llama: 8 heads on ")
    for address in ("0:0", "0:3", "1:0", "1:3"):
        assert f"\n  {address} " in out
    assert "1st order: first-order importance: size of the loss's gradient by a gate on the head" in " ".join(
        out.split()
    )
    assert re.search(r"^[0-9.]+ s: importance: first-order", err, re.MULTILINE)
    *table, following = out.splitlines()
    assert max(len(line) for line in table) <= 80
    assert following.startswith(f"Next: manyheads heads {tiny('llama')} --head ")  # as long as the model's path
    assert "importance: first-order" in err


def test_json_is_what_statistics_say(capsys: Any, tiny: Any, text: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from manyheads.heads.batches import windows
    from manyheads.heads.statistics import head_statistics

    status, out, _ = quick(capsys, tiny("llama"), text, "--json", "--importance", "none")
    told = json.loads(out)
    assert status == 0
    assert told["schema"] == "manyheads.heads/1"
    assert told["importance"] is told["roles"] is None
    ids = AutoTokenizer.from_pretrained(tiny("llama"))(TEXT, add_special_tokens=False)["input_ids"]
    found = head_statistics(AutoModelForCausalLM.from_pretrained(tiny("llama")), windows(ids, 40))
    assert told["text"]["tokens"] == len(ids)
    for head in told["heads"]:
        at = head["layer"], head["number"]
        assert head["mass"]["first"] == pytest.approx(found.mass["first"][at], abs=1e-6)
        assert head["entropy"] == pytest.approx(found.entropy[at], abs=1e-5)
    assert told["chance"][0]["mass"]["self"] == pytest.approx(found.chance.mass["self"][0, 0], abs=1e-6)


def test_csv_to_stdout_and_to_a_file(capsys: Any, tiny: Any, text: str, tmp_path: Path) -> None:
    status, out, _ = quick(capsys, tiny("llama"), text, "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert status == 0
    assert [row["head"] for row in rows] == ["0:0", "0:1", "0:2", "0:3", "1:0", "1:1", "1:2", "1:3"]
    assert all(0 < float(row["mass_first"]) < 1 and row["mass_next"] == "" for row in rows)
    assert quick(capsys, tiny("llama"), text, "--csv", "--output", str(tmp_path / "heads.csv"))[:2] == (0, "")
    assert (tmp_path / "heads.csv").read_text() == out


def test_one_head_in_detail(capsys: Any, tiny: Any, text: str) -> None:
    status, out, _ = quick(capsys, tiny("llama"), text, "--head", "L1H2")
    assert status == 0
    assert "Where does head 1:2 look?" in out
    assert "At which distances?" in out
    assert "rank " in out
    status, out, _ = quick(capsys, tiny("llama"), text, "--head", "1:2", "--json")
    told = json.loads(out)
    one = told["one"]
    assert len(one["offsets"]) == 2 * told["reach"] + 1
    assert sum(one["offsets"]) == pytest.approx(1, abs=1e-5)
    status, out, _ = quick(capsys, tiny("llama"), text, "--head", "1:2", "--csv")
    assert [row["head"] for row in csv.DictReader(io.StringIO(out))] == ["1:2"]


def test_an_encoder_and_an_encoder_decoder(capsys: Any, tiny: Any, text: str) -> None:
    status, out, _ = quick(capsys, tiny("bert"), text)
    assert status == 0
    assert "importance was not measured: its tokenizer has no mask token" in " ".join(out.split())
    status, out, _ = quick(capsys, tiny("t5"), text, "--json")
    told = json.loads(out)
    assert status == 0
    assert told["importance"]["objective"] == "copying"
    assert all(head["importance"] > 0 for head in told["heads"])
    assert {head["stage"] for head in told["heads"]} == {"encoder", "decoder", "cross"}
    assert told["text"]["decoder_reads_the_same"]
    status, out, _ = quick(capsys, tiny("t5"), text, "--head", "cross/2:1")
    assert status == 0
    assert "At which distances?" not in out  # queries and keys are of two texts


def test_a_masked_model_is_judged_by_hidden_tokens(capsys: Any, text: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    folder = tiny_models.save("bert", tmp_path / "bert")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = "<pad>"
    tokenizer.save_pretrained(folder)
    status, out, err = quick(capsys, folder, text)
    said = " ".join(out.split())
    assert status == 0
    assert "importance: first-order, for hidden tokens" in err
    assert "nats a hidden token shares" in said  # the largest, in the notes of the table
    assert "importance is judged by hidden tokens: " in said
    assert "this is no perplexity; 5.9" in said  # log 384 is 5.95
    status, out, _ = quick(capsys, folder, text, "--json", "--importance", "mean")
    assert json.loads(out)["importance"] | {"loss": 0, "loss_is": ""} == {
        "method": "mean", "loss": 0, "objective": "hidden tokens", "loss_is": "", "unit": "nats a hidden token",
    }  # fmt: skip


def test_without_a_language_head_only_exact_ablation_says_something(capsys: Any, text: str, tmp_path: Path) -> None:
    from transformers import AutoModel

    folder = tiny_models.save("bert", tmp_path / "bert")
    AutoModel.from_pretrained(folder).save_pretrained(folder)
    status, out, _ = quick(capsys, folder, text)
    assert status == 0
    assert "there is no first-order score" in " ".join(out.split())
    status, out, _ = quick(capsys, folder, text, "--importance", "zero", "--json")
    assert all(
        head["importance_low"] < head["importance"] < head["importance_high"] for head in json.loads(out)["heads"]
    )
    assert f"of {len(json.loads(out)['heads'])} heads are told apart from 0" in " ".join(
        quick(capsys, folder, text, "--importance", "zero")[1].split()
    )
    told = json.loads(out)
    assert (told["importance"]["objective"], told["importance"]["loss"]) == ("drift", 0.0)
    assert all(head["importance"] > 0 for head in told["heads"])


def test_roles_are_tested_and_the_bos_is_said(capsys: Any, tiny: Any, text: str) -> None:
    status, out, err = run(capsys, tiny("llama"), "--text", text, "--threads", "1", "--bos", "--importance", "none")
    assert status == 0
    assert "Which heads have a role that beats its control?" in out
    assert "not tested: syntax: needs sentences with gold heads" in out
    assert "<s> before" in " ".join(out.split())
    assert "(as asked)" in " ".join(out.split())
    assert "roles: " in err


def test_the_least_effect_is_told_and_is_what_python_takes(capsys: Any, tiny: Any, text: str) -> None:
    words = (tiny("llama"), "--text", text, "--threads", "1", "--importance", "none", "--json")
    for asked, expected in (((), LEAST_EFFECT), (("--least-effect", "0.25"), 0.25)):
        status, out, _ = run(capsys, *words, *asked)
        assert status == 0
        assert json.loads(out)["roles"]["least_effect"] == expected
    status, out, _ = run(capsys, *words[:-1], "--least-effect", "0.25")
    said = " ".join(out.split())
    assert "a role is 0.25 or more above its control" in said
    assert "0 of 8 heads have a role beside the sink" in said


def test_a_page_to_look_into_where_the_file_s_name_asks_for_one(
    capsys: Any, tiny: Any, text: str, tmp_path: Path
) -> None:
    status, out, err = quick(capsys, tiny("llama"), text, "--head", "1:2", "--output", str(tmp_path / "heads.html"))
    page = (tmp_path / "heads.html").read_text()
    assert (status, out) == (0, "")
    assert f"wrote {tmp_path / 'heads.html'}" in err
    assert page.startswith("<!doctype html>")
    assert 'id="heads-view"' in page
    assert page.index("What was read?") < page.index('id="heads-view"') < page.index("Where does head 1:2 look?")
    assert 'data-head="1:3"' in page
    for family in ("bert", "t5"):
        name = tmp_path / f"{family}.html"
        assert quick(capsys, tiny(family), text, "--importance", "none", "--output", str(name))[0] == 0
        assert 'id="heads-view"' in name.read_text()


def test_a_head_that_was_removed_is_said_to_be(capsys: Any, tiny: Any, text: str, tmp_path: Path) -> None:
    from manyheads.heads.pruning import export_pruned

    export_pruned(tiny("llama"), "0:1,2", tmp_path / "out", form="padded")
    said = refused(capsys, tmp_path / "out", "--text", text, "--head", "0:2")
    assert said == "manyheads: --head 0:2 was removed before; its layer still has 0, 3"
    _, out, _ = quick(capsys, tmp_path / "out", text, "--csv")
    assert [row["head"] for row in csv.DictReader(io.StringIO(out))] == ["0:0", "0:3", "1:0", "1:1", "1:2", "1:3"]


def test_an_address_without_a_stage_is_the_decoder_s(capsys: Any, tiny: Any, text: str) -> None:
    status, out, _ = quick(capsys, tiny("t5"), text, "--head", "0:0", "--importance", "none")
    assert status == 0
    assert "Where does head decoder/0:0 look?" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--head", "17:3"], "--head 17:3: there is no such head; the model has layers 0 to 1 with heads 0 to 3"),
        (["--head", "one"], "'one' is not the address of a head"),
        (["--head", "cross/0:1"], "--head cross/0:1: there is no such head"),
        (["--tokens", "1"], "--tokens '1' is not a number of tokens from 2 to"),
        (["--window", "1"], "--window '1' is not a number of tokens from 2 to"),
        (["--window", "none"], "--window"),
        (["--csv", "--json"], "--csv and --json are two forms of one answer"),
        (["--importance", "guess"], "'guess' is not one of first-order, zero, mean, resample, none"),
        (["--least-effect", "1"], "--least-effect '1' is not a share from 0 to below 1, such as 0.1"),
        (["--least-effect", "nan"], "--least-effect 'nan' is not a share"),
        (["--least-effect", "a tenth"], "--least-effect 'a tenth' is not a share"),
        (["--dtype", "int3"], "--dtype 'int3' is not one of fp32, bf16, fp16"),
        (["--text", "missing.txt"], "missing.txt: no such file"),
        (["--conllu", "missing.conllu"], "missing.conllu"),
        (["--output", "missing/heads.csv", "--csv"], "does not exist"),
    ],
)
def test_bad_requests(capsys: Any, tiny: Any, words: list[str], message: str) -> None:
    assert message in refused(capsys, tiny("llama"), *words)


def test_conllu_without_roles(capsys: Any, tiny: Any) -> None:
    assert "--no-roles asks for none" in refused(capsys, tiny("llama"), "--no-roles", "--conllu", "x.conllu")


def test_a_text_of_one_token(capsys: Any, tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert "a.txt is 1 token long; at least 2 are needed" in refused(
        capsys, tiny("llama"), "--text", tmp_path / "a.txt"
    )


def test_what_is_left_out_is_told_with_why(capsys: Any, tiny: Any, text: str, tmp_path: Path) -> None:
    """24 sentences of three words and 2 of 90, of a model with 64 positions."""
    short = "1\tthe\t_\t_\t_\t_\t2\tdet\t_\t_\n2\tcat\t_\t_\t_\t_\t0\troot\t_\t_\n3\tsat\t_\t_\t_\t_\t2\tobj\t_\t_"
    long = "\n".join(f"{at}\tcat\t_\t_\t_\t_\t{at - 1}\t{'obj' if at > 1 else 'root'}\t_\t_" for at in range(1, 91))
    path = tmp_path / "trees.conllu"
    path.write_text("\n\n".join([short] * 24 + [long] * 2) + "\n", encoding="utf-8")
    words = (tiny("bert"), "--text", text, "--conllu", path, "--importance", "none", "--threads", "1")
    status, out, _ = run(capsys, *words)
    assert status == 0
    assert "left out: 2 of 26 sentences: longer than the 64 tokens that the model reads" in out
    assert json.loads(run(capsys, *words, "--json")[1])["roles"]["left_out"][-1] == {
        "what": "sentences", "count": 2, "of": 26, "why": "longer than the 64 tokens that the model reads",
    }  # fmt: skip


def test_what_of_the_text_is_not_read_is_told(capsys: Any, tiny: Any, text: str) -> None:
    words = ("--importance", "none", "--tokens", "41")
    _, out, _ = quick(capsys, tiny("llama"), text, *words)
    told = json.loads(quick(capsys, tiny("llama"), text, *words, "--json")[1])["text"]
    assert (told["tokens"], told["windows"], told["goes_on"]) == (41, 1, True)
    assert [(row["count"], row["of"], row["what"]) for row in told["left_out"]] == [(1, 41, "tokens")]
    flat = " ".join(out.split())
    assert "the text goes on: its first 41 tokens are read (--tokens)" in flat
    assert "left out: 1 of 41 tokens: the last window would have one token" in flat
    whole = json.loads(quick(capsys, tiny("llama"), text, "--importance", "none", "--json")[1])["text"]
    assert (whole["goes_on"], whole["left_out"]) == (False, [])


def test_broken_conllu(capsys: Any, tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.conllu").write_text("1\tonly\tthree\n")
    assert "broken.conllu" in refused(capsys, tiny("llama"), "--conllu", tmp_path / "broken.conllu")


def test_a_model_that_does_not_pass_through_the_door(capsys: Any, tmp_path: Path) -> None:
    from transformers import FalconConfig, FalconForCausalLM

    FalconForCausalLM(
        FalconConfig(vocab_size=tiny_models.VOCABULARY, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    ).save_pretrained(tmp_path / "falcon")
    tiny_models.save_tokenizer(tmp_path / "falcon")
    line = refused(capsys, tmp_path / "falcon")
    assert "its attention does not pass through transformers' AttentionInterface" in line
