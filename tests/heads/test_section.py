"""The heads in an x-ray: the tables, the object, what is said where a part cannot be had, and that the page holds them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")

import torch

import tiny_models
from manyheads.heads.section import HeadsSection
from manyheads.heads.section_tables import BUDGET, CONTROLS, MATTER, ROLES, tables
from manyheads.models.reading import shipped_text
from manyheads.models.xray import Request, xray
from manyheads.models.xray_page import page
from manyheads.report.jsonform import dumps


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(section, report) of a tiny model of a family, each made once."""
    root, kept = tmp_path_factory.mktemp("models"), {}

    def of(family: str, tokens: int = 400, **options):
        key = family, tokens, *options.items()
        if key not in kept:
            folder = root / family
            if not folder.exists():
                tiny_models.save(family, folder)
            section = HeadsSection(**options)
            request = Request(str(folder), shipped_text(), tokens=tokens, threads=1)
            kept[key] = section, xray(request, sections=[section])
        return kept[key]

    return of


def table(report, question: str):
    return next(table for table in report.tables if table.question == question)


def test_every_head_is_scored_and_tables_are_made_of_the_object(made) -> None:
    _, report = made("llama")
    data = json.loads(dumps(report))["heads"]
    addresses = [f"{layer}:{head}" for layer in range(2) for head in range(4)]
    assert [row["head"] for row in data["importance"]["heads"]] == addresses
    assert set(data["roles"]["labels"]) == set(addresses)
    assert (data["importance"]["windows"], data["importance"]["exact_windows"]) == (16, 8)
    assert data["importance"]["method"] == "first-order"
    assert tables(data) == tuple(table(report, question) for question in (ROLES, CONTROLS, MATTER, BUDGET))
    assert data["maps"] | {"seconds": 0} == {
        "reason": "", "tokens": 64, "heads": 8, "rows": 272, "keys": 12, "blocks": 64, "seconds": 0,
    }  # fmt: skip


def test_heads_that_were_taken_out_are_shown_by_what_that_cost() -> None:
    """A head may matter most and have a small slope: what was measured goes before what was estimated."""
    row = {"loss_low": -0.1, "loss_high": 0.3}
    heads = [
        {"head": "0:0", "first_order": 0.1, "loss_without": 0.2, **row},
        {"head": "0:1", "first_order": 0.9, "loss_without": 0.01, **row},
        {"head": "0:2", "first_order": 0.5, "loss_without": None, "loss_low": None, "loss_high": None},
    ]
    labels = {"0:0": "first token", "0:1": "first token", "0:2": "induction"}
    data = {
        "importance": {
            "reason": "", "heads": heads, "method": "first-order", "objective": "next token", "loss_is": "", "unit": "nats",
            "windows": 4, "window_tokens": 16, "exact_windows": 2, "exact_heads": 2, "baseline": 3.0,
            "rank_correlation": -1.0,
        },
        "roles": {
            "reason": "", "labels": labels, "roles": [], "fdr": 0.05, "tests": 9, "windows": 8, "window_tokens": 16, "bos": "",
            "not_tested": [], "left_out": [],
        },
        "removable": {"reason": "no"}, "maps": {"reason": ""},
    }  # fmt: skip
    made = {table.question: table for table in tables(data)}
    assert [row[:4] for row in made[MATTER].rows] == [
        ("L0H0", "first token", "+0.2000", "-0.1000 to +0.3000"), ("L0H1", "first token", "+0.0100", "-0.1000 to +0.3000"),
    ]  # fmt: skip
    assert [row[4:] for row in made[MATTER].rows] == [("0.1", "3 of 3"), ("0.9", "1 of 3")]
    assert "1 were not taken out" in " ".join(made[MATTER].notes)
    assert "the two ends of one of them" in " ".join(made[MATTER].notes)
    assert made[ROLES].notes[0].startswith("3 of 3 heads have a role that beats its control, 2 of them only as a sink")


def test_what_is_taken_out_has_an_interval(made) -> None:
    """Student's t over the windows, of what each window's loss rises by."""
    own = made("llama")[1].data["heads"]["importance"]
    assert all(row["loss_low"] < row["loss_without"] < row["loss_high"] for row in own["heads"])


def test_what_can_go_is_judged_on_two_texts_in_two_ways(made) -> None:
    _, report = made("llama")
    rows = report.data["heads"]["removable"]["texts"]
    assert [(row["text"], row["how"]) for row in rows] == [
        ("the first half of the text", "zero"), ("the first half of the text", "mean"),
        ("the second half", "zero"), ("the second half", "mean"),
    ]  # fmt: skip
    for row in rows:
        assert 0 <= row["low"] <= row["heads"] <= row["high"] <= row["total"] == 8
        assert len(row["counts"]) == len(row["losses"])
    notes = " ".join(table(report, BUDGET).notes)
    assert "no head is chosen on the text that it is judged by" in notes


def test_heads_are_ordered_on_the_other_half() -> None:
    """Importance that differs between halves: the order for a half comes from the scores of the other."""
    from manyheads.heads import section_importance as room
    from manyheads.heads.places import Place
    from manyheads.heads.scores import Importance

    by_batch = torch.tensor([[[1.0, 2.0, 3.0]], [[1.0, 2.0, 3.0]], [[9.0, 8.0, 7.0]]], dtype=torch.float64)
    found = Importance(
        "first-order", by_batch.mean(0), torch.zeros(1, 3, dtype=torch.bool), 1.0, (Place("a", 0, "", 3, 3),), by_batch,
        torch.ones(3) / 3, 0.0,
    )  # fmt: skip
    assert [head.head for head in room._order(found, 2, first=True)] == [0, 1, 2]
    assert [head.head for head in room._order(found, 2, first=False)] == [2, 1, 0]


def test_only_the_ends_are_exact_unless_all_are_asked_for(made) -> None:
    _, some = made("qwen3", tokens=200)
    assert some.data["heads"]["importance"]["exact_heads"] == 8  # it has no more heads than that
    _, every = made("llama", tokens=200, exact=True)
    own = every.data["heads"]["importance"]
    assert (own["method"], own["exact_heads"]) == ("mean", 8)
    assert all(row["score"] == row["loss_without"] for row in own["heads"])
    assert "by exact ablation" in " ".join(table(every, BUDGET).notes)


def test_extremes_are_the_highest_and_the_lowest() -> None:
    from manyheads.heads import section_importance as room
    from manyheads.heads.places import Place
    from manyheads.heads.scores import Importance

    scores = torch.arange(40.0, dtype=torch.float64)[None]
    found = Importance(
        "first-order", scores, torch.zeros(1, 40, dtype=torch.bool), 1.0, (Place("a", 0, "", 40, 40),), scores[None],
        torch.ones(1), 0.0,
    )  # fmt: skip
    assert [head.head for head in room._extremes(found)] == [*range(8), *range(32, 40)]


def test_the_page_holds_the_grids_and_the_maps(made) -> None:
    section, report = made("llama")
    text = page(report, widgets=section.widgets(report.data["heads"]))
    assert text.count('class="heads-grid"') == 2
    assert len(re.search(r'id="heads-maps">([^<]*)<', text).group(1).split()) == 8
    assert (
        text.index("What does each head do?</h2>")
        < text.index('id="heads-view"')
        < text.index("Which heads matter?</h2>")
    )


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """(section, report) of a tiny BERT whose tokenizer frames a text and has a mask token."""
    folder = tiny_models.save("bert", tmp_path_factory.mktemp("masked") / "bert")
    _frame_as_bert(folder)
    section = HeadsSection()
    return section, xray(Request(str(folder), shipped_text(), tokens=400, threads=1), sections=[section])


def _frame_as_bert(folder: Path) -> None:
    """<s> before and </s> after a text, as BERT's tokenizer puts [CLS] and [SEP]; the mask is a token of no text."""
    import tokenizers
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer.mask_token = "<pad>"
    tokenizer.save_pretrained(folder)


def test_a_masked_model_is_judged_by_hidden_tokens(masked) -> None:
    section, report = masked
    data = report.data["heads"]
    own = data["importance"]
    assert (own["objective"], own["unit"], own["method"]) == ("hidden tokens", "nats a hidden token", "first-order")
    assert own["baseline"] == pytest.approx(5.95, abs=0.1)  # log 384: it knows nothing
    assert [row["how"] for row in data["removable"]["texts"]] == ["zero", "mean", "zero", "mean"]
    for question in (MATTER, BUDGET):
        assert "nats a hidden token" in " ".join(table(report, question).notes)
    assert "this is no perplexity" in " ".join(table(report, MATTER).notes)
    assert "<s> before" in data["roles"]["bos"]
    text = page(report, widgets=section.widgets(data))
    assert "nats a hidden token" in text
    assert text.count('class="heads-grid"') == 2


def test_a_masked_model_without_a_mask_token_says_so(made) -> None:
    section, report = made("bert")
    data = report.data["heads"]
    assert "no mask token" in data["importance"]["reason"]
    assert data["removable"]["reason"] == data["importance"]["reason"]
    assert (data["roles"]["reason"], data["maps"]["reason"]) == ("", "")
    assert table(report, MATTER).rows[1] == ("why", data["importance"]["reason"])
    assert page(report, widgets=section.widgets(data)).count('class="heads-grid"') == 1


def test_an_encoder_decoder_is_judged_too(made) -> None:
    data = made("t5")[1].data["heads"]
    assert (data["importance"]["objective"], data["importance"]["reason"]) == ("copying", "")
    assert len(data["importance"]["heads"]) == 4 * (2 + 3 + 3)
    assert {row["total"] for row in data["removable"]["texts"]} == {4 * (2 + 3 + 3)}


def test_an_encoder_without_a_head_drifts(tmp_path) -> None:
    import transformers

    folder = tiny_models.save("bert", tmp_path / "bert")
    model = transformers.AutoModel.from_pretrained(folder)
    model.save_pretrained(folder)
    section = HeadsSection()
    report = xray(Request(str(folder), shipped_text(), tokens=300, threads=1), sections=[section])
    data = report.data["heads"]
    own = data["importance"]
    assert (own["objective"], own["method"], own["exact_heads"], own["baseline"]) == ("drift", "mean", 8, 0.0)
    assert all(row["first_order"] is None and row["score"] == row["loss_without"] > 0 for row in own["heads"])
    assert "a drift of 0" in data["removable"]["reason"]
    shown = table(report, MATTER)
    assert [column.name for column in shown.columns][-2:] == ["drift without it", "95% interval"]
    assert "no first-order scores" in " ".join(shown.notes)
    text = page(report, widgets=section.widgets(data))
    assert "How far the output drifts, of the variance" in text
    assert re.search(r"drift \+[0-9.e-]+ of the variance[^;]* without it", text)


def test_an_encoder_decoder_has_maps_of_all_three_stages(made) -> None:
    section, report = made("t5")
    data = report.data["heads"]
    assert data["maps"]["heads"] == 4 * (2 + 3 + 3)
    text = page(report, widgets=section.widgets(data))
    assert 'data-head="cross/2:3"' in text


def test_a_model_of_sound_says_that_it_reads_no_text(made) -> None:
    _, report = made("whisper")
    data = report.data["heads"]
    assert "input_features" in data["maps"]["reason"]
    assert data["roles"]["reason"]
    assert report.data["agrees"] is True


def test_without_a_tokenizer_each_part_says_why(tmp_path) -> None:
    section = HeadsSection()
    folder = tiny_models.save("llama", tmp_path / "mute", tokenizer=False)
    report = xray(Request(str(folder), shipped_text(), tokens=100, threads=1), sections=[section])
    data = report.data["heads"]
    for part in ("roles", "importance", "removable", "maps"):
        assert "no tokenizer" in data[part]["reason"]
    assert section.widgets(data) == ()
    assert page(report).count("no tokenizer") >= 3


def test_a_model_that_does_not_pass_through_the_door_is_named_and_the_rest_is_measured(tmp_path) -> None:
    import transformers

    config = transformers.FalconConfig(
        vocab_size=tiny_models.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        new_decoder_architecture=False, multi_query=True, max_position_embeddings=64,
    )  # fmt: skip
    transformers.FalconForCausalLM(config).save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    report = xray(Request(str(tmp_path), shipped_text(), tokens=150, threads=1), sections=[HeadsSection()])
    for part in ("roles", "importance", "removable", "maps"):
        assert "FalconForCausalLM (falcon): its attention does not pass" in report.data["heads"][part]["reason"]
    assert report.data["agrees"] is True


def test_a_text_too_short_for_windows_says_how_much_is_needed(made) -> None:
    _, report = made("llama", tokens=40)
    assert (
        "20 tokens; importance needs two windows of 16 in each, 64 tokens in all"
        in report.data["heads"]["importance"]["reason"]
    )


def test_heads_can_be_looked_into_where_nothing_else_is_known(made) -> None:
    section, report = made("llama")
    missing = report.data["heads"] | {"roles": {"reason": "no"}, "importance": {"reason": "no"}}
    text = page(report, widgets=section.widgets(missing))
    assert text.count('class="heads-grid"') == 1
    assert text.count("data-head=") == 8
    assert 'id="heads-view"' in text


def test_the_object_is_documented_key_by_key(made) -> None:
    text = (Path(__file__).parents[2] / "docs" / "xray-json.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z_0-9]+)(?:\[\])?`", text))
    data = made("llama")[1].data["heads"]
    parts = [data, data["roles"], data["importance"], data["removable"], data["maps"], data["roles"]["roles"][0]]
    parts += [data["importance"]["heads"][0], data["removable"]["texts"][0], data["roles"]["not_tested"][0]]
    parts += [{"score": 0, "control": 0, "low": 0, "high": 0, "q_value": 0, "detail": 0, "head": 0}]
    assert {key for part in parts for key in part} - documented == set()
