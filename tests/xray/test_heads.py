"""The heads in an x-ray: the tables, the object, what is said where a part cannot be had, and that the page holds them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")

import numpy as np

from manyheads.checkpoints import open_model
from manyheads.heads.address import Head
from manyheads.heads.left_out import NotMeasured
from manyheads.heads.roles.tables import counted
from manyheads.models.load.text import shipped_text
from manyheads.report import Report
from manyheads.report.jsonform import dumps
from manyheads.xray.heads import HeadsAsked
from manyheads.xray.heads_record import (
    BudgetSpent,
    FirstPosition,
    HeadAtFirst,
    HeadImportance,
    HeadsFound,
    ImportanceFound,
    Removable,
    RolesFound,
)
from manyheads.xray.heads_tables import BUDGET, CONTROLS, FIRST, MATTER, ROLES, tables
from manyheads.xray.heads_widgets import widgets
from manyheads.xray.page import page
from manyheads.xray.record import XRay
from manyheads.xray.run import Request, xray
from manyheads.xray.tables import report
from support import tiny_models


def xrayed(folder, tokens: int, **options) -> tuple[XRay, Report]:
    found = xray(Request(open_model(folder), shipped_text(), tokens=tokens, threads=1, heads=HeadsAsked(**options)))
    return found, report(found)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(x-ray, report) of a tiny model of a family, each made once."""
    root, kept = tmp_path_factory.mktemp("models"), {}

    def of(family: str, tokens: int = 400, **options):
        key = family, tokens, *options.items()
        if key not in kept:
            folder = root / family
            if not folder.exists():
                tiny_models.save(family, folder)
            kept[key] = xrayed(folder, tokens, **options)
        return kept[key]

    return of


def table(printed: Report, question: str):
    return next(table for table in printed.tables if table.question == question)


def test_every_head_is_scored_and_tables_are_made_of_the_object(made) -> None:
    found, printed = made("llama")
    data = json.loads(dumps(printed))["heads"]
    addresses = [f"{layer}:{head}" for layer in range(2) for head in range(4)]
    assert [row["head"] for row in data["importance"]["heads"]] == addresses
    assert set(data["roles"]["labels"]) == set(addresses)
    assert (data["importance"]["windows"], data["importance"]["exact_windows"]) == (16, 8)
    assert data["importance"]["method"] == "mean"
    assert tables(found.heads) == tuple(
        table(printed, question) for question in (ROLES, CONTROLS, MATTER, FIRST, BUDGET)
    )
    assert data["maps"] | {"seconds": 0} == {
        "reason": "", "tokens": 64, "heads": 8, "rows": 272, "keys": 12, "blocks": 64, "seconds": 0,
    }  # fmt: skip


def importance_of(*rows: dict, **changes: object) -> ImportanceFound:
    """The importance of heads with these figures, of a model that was judged by its next tokens."""
    common = {
        "loss_low": 0.1, "loss_high": 0.3, "q_value": 0.01, "told_apart": True, "exact_windows": 10, "screened": True,
        "expected": 0.05, "first_order": 0.9,
    }  # fmt: skip
    heads = tuple(HeadImportance(**(common | row | {"score": row["loss_without"]})) for row in rows)
    return ImportanceFound(**{
        "reason": "", "heads": heads, "method": "mean", "objective": "next token", "loss_is": "", "unit": "nats a token",
        "windows": 32, "window_tokens": 128, "exact_windows": 10, "exact_heads": 2, "screened_heads": len(heads),
        "screen_windows": 2, "screen_tokens": 64, "baseline": 3.0, "rank_correlation": 0.1, "expected_correlation": 0.6,
        "fdr": 0.05, "told_apart": sum(row.told_apart for row in heads), "first_order_seconds": 1.0, "exact_seconds": 2.0,
        "budget": BudgetSpent(180.0, stopped=False), "prefix_reused": True,
        "first_position": FirstPosition("", 8, 32, (HeadAtFirst("0:2", 0.34, -0.5, 1.2, 2.6),)),
    } | changes)  # fmt: skip


def shown(importance: ImportanceFound) -> dict:
    labels = {row.head: "first token" for row in importance.heads}
    roles = RolesFound("", 0.05, 0.1, 9, "", 8, 16, (), (), (), labels)
    found = HeadsFound(roles, importance, Removable("no"), NotMeasured(""), 0.0)
    return {table.question: table for table in tables(found)}


def test_heads_that_are_told_apart_are_shown_and_the_rest_are_said_not_to_be() -> None:
    made = shown(
        importance_of(
            {"head": "0:0", "loss_without": 0.15}, {"head": "0:1", "loss_without": 0.5, "told_apart": False, "loss_low": -0.2},
            {"head": "0:2", "loss_without": 0.2}, {"head": "0:3", "loss_without": None, "told_apart": False},
        )
    )  # fmt: skip
    rows = made[MATTER].rows
    assert [(row[0], row[2], row[3], row[4]) for row in rows] == [
        ("L0H2", "+0.2000", "+0.1000 to +0.3000", "+0.0500"), ("L0H0", "+0.1500", "+0.1000 to +0.3000", "+0.0500"),
    ]  # fmt: skip
    notes = " ".join(made[MATTER].notes)
    assert "2 of 4 heads are told apart from 0" in notes
    assert "the other 2 are not told apart from 0 here" in notes
    assert "the 2 heads that promised most were taken out on 10 windows of 128 tokens" in notes
    assert "all were before, on 2 short ones of 64" in notes
    assert "0.60 of first order towards the mean, 0.10 of |dL/dg|" in notes
    assert made[FIRST].rows == (("L0H2", "first token", "+0.3400", "-0.5000 to +1.2000", "+2.6000"),)


def test_where_no_head_is_told_apart_the_highest_are_no_finding() -> None:
    rows = [{"head": f"0:{n}", "loss_without": 0.01 * n, "told_apart": False} for n in range(8)]
    made = shown(importance_of(*rows, first_position=FirstPosition("none")))
    assert [row[0] for row in made[MATTER].rows] == ["L0H7", "L0H6", "L0H5", "L0H4", "L0H3"]
    assert "0 of 8 heads are told apart from 0" in made[MATTER].notes[0]
    assert "so the highest estimates are no finding" in made[MATTER].notes[1]
    assert FIRST not in made


def test_a_budget_that_stopped_it_is_said() -> None:
    rows = [{"head": f"0:{n}", "loss_without": 0.01 * n} for n in range(20)]
    notes = " ".join(
        shown(importance_of(*rows, screened_heads=12, budget=BudgetSpent(3.0, stopped=True)))[MATTER].notes
    )
    assert "no new work is begun after 3 s (seconds=); more time takes more heads out" in notes
    assert "12 of 20 were before" in notes
    assert "4 more than are shown: L0H3, L0H2, L0H1, L0H0" in notes


def test_the_headline_is_without_the_sink() -> None:
    assert counted(["first token", "induction", "", "first token"], 3) == [
        "1 of 4 heads have a role beside the sink", "the sink: 3 heads look at the first token, 2 of which have no other role",
    ]  # fmt: skip
    assert counted(["", ""], 0) == ["0 of 2 heads have a role beside the sink"]


def test_what_is_taken_out_has_an_interval(made) -> None:
    """Student's t over the windows, of what each window's loss rises by."""
    own = made("llama")[1].data["heads"]["importance"]
    assert all(row["loss_low"] < row["loss_without"] < row["loss_high"] for row in own["heads"])


def test_what_can_go_is_judged_on_two_texts_in_two_ways(made) -> None:
    _, printed = made("llama")
    rows = printed.data["heads"]["removable"]["texts"]
    assert [(row["text"], row["how"]) for row in rows] == [
        ("the first half of the text", "zero"), ("the first half of the text", "mean"),
        ("the second half", "zero"), ("the second half", "mean"),
    ]  # fmt: skip
    for row in rows:
        assert 0 <= row["low"] <= row["heads"] <= row["high"] <= row["total"] == 8
        assert len(row["counts"]) == len(row["losses"])
    notes = " ".join(table(printed, BUDGET).notes)
    assert "no head is chosen on the text that it is judged by" in notes


def test_heads_are_ordered_on_the_other_half_and_the_first_position_counts() -> None:
    """Importance that differs between halves: the order for a half comes from the scores of the other. What the first
    position costs was measured over 32 tokens of 128, so a quarter of it is a cost of the window."""
    from types import SimpleNamespace

    from manyheads.heads.effects import AtFirst
    from manyheads.xray import heads_importance as room

    heads = tuple(Head(0, n) for n in range(3))
    costs = np.array([[1.0, 2.0, 3.0], [9.0, 8.0, 7.0]])
    found = SimpleNamespace(heads=heads, cost=lambda half, how: costs[half] * (1 if how == "mean" else -1))
    text = SimpleNamespace(rows=([[0] * 128], [[0] * 128]))
    assert room._order(found, (), text, half=0, how="mean") == [heads[0], heads[1], heads[2]]
    assert room._order(found, (), text, half=1, how="mean") == [heads[2], heads[1], heads[0]]
    assert room._order(found, (), text, half=0, how="zero") == [heads[2], heads[1], heads[0]]
    first = (AtFirst(heads[2], 0.0, 0.0, 0.0, 0.0, (0.0, -4.4)), AtFirst(heads[0], 0.0, 0.0, 0.0, 0.0, (8.4, 0.0)))
    assert room._order(found, first, text, half=0, how="mean") == [heads[1], heads[2], heads[0]]
    assert room._order(found, first, text, half=1, how="mean") == [heads[1], heads[2], heads[0]]


def test_heads_go_on_a_half_in_the_order_of_the_other(made, monkeypatch) -> None:
    from manyheads.xray import heads_importance as room

    asked: list[tuple[int, str]] = []
    own = room._order
    monkeypatch.setattr(room, "_order", lambda *a, half, how: asked.append((half, how)) or own(*a, half=half, how=how))
    made("llama", tokens=160)
    assert asked == [(1, "zero"), (1, "mean"), (0, "zero"), (0, "mean")]


def test_every_head_is_measured_where_there_are_few_or_all_are_asked_for(made) -> None:
    own = made("qwen3", tokens=200)[1].data["heads"]["importance"]
    assert (own["exact_heads"], own["screened_heads"], own["budget"]["stopped"]) == (8, 0, False)
    own = made("llama", tokens=200, exact=True)[1].data["heads"]["importance"]
    assert (own["method"], own["exact_heads"], own["budget"]["seconds"]) == ("mean", 8, None)
    assert all(row["score"] == row["loss_without"] for row in own["heads"])


def test_windows_are_spread_over_the_text_from_the_first_few_on() -> None:
    from manyheads.xray.heads_importance import _spread

    assert _spread([[n] for n in range(8)]) == [[0], [4], [2], [6], [1], [5], [3], [7]]
    assert sorted(_spread([[n] for n in range(11)])) == [[n] for n in range(11)]


def test_the_page_holds_the_grids_and_the_maps(made) -> None:
    found, _ = made("llama")
    text = page(found)
    assert text.count('class="heads-grid"') == 2
    assert len(re.search(r'id="heads-maps">([^<]*)<', text).group(1).split()) == 8


@pytest.fixture(scope="module")
def masked(tmp_path_factory):
    """(section, report) of a tiny BERT whose tokenizer frames a text and has a mask token."""
    folder = tiny_models.save("bert", tmp_path_factory.mktemp("masked") / "bert")
    _frame_as_bert(folder)
    return xrayed(folder, 400)


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
    found, printed = masked
    data = printed.data["heads"]
    own = data["importance"]
    assert (own["objective"], own["unit"], own["method"]) == ("hidden tokens", "nats a hidden token", "mean")
    assert own["baseline"] == pytest.approx(5.95, abs=0.1)  # log 384: it knows nothing
    assert [row["how"] for row in data["removable"]["texts"]] == ["zero", "mean", "zero", "mean"]
    for question in (MATTER, BUDGET):
        assert "nats a hidden token" in " ".join(table(printed, question).notes)
    assert "this is no perplexity" in " ".join(table(printed, MATTER).notes)
    assert "<s> before" in data["roles"]["bos"]
    text = page(found)
    assert "nats a hidden token" in text
    assert text.count('class="heads-grid"') == 2


def test_a_masked_model_without_a_mask_token_says_so(made) -> None:
    found, printed = made("bert")
    data = printed.data["heads"]
    assert "no mask token" in data["importance"]["reason"]
    assert data["removable"]["reason"] == data["importance"]["reason"]
    assert (data["roles"]["reason"], data["maps"]["reason"]) == ("", "")
    assert table(printed, MATTER).rows[1] == ("why", data["importance"]["reason"])
    assert page(found).count('class="heads-grid"') == 1


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
    found, printed = xrayed(folder, 300)
    data = printed.data["heads"]
    own = data["importance"]
    assert (own["objective"], own["method"], own["exact_heads"], own["baseline"]) == ("drift", "mean", 8, 0.0)
    assert all(row["first_order"] is None and row["score"] == row["loss_without"] > 0 for row in own["heads"])
    assert "a drift of 0" in data["removable"]["reason"]
    shown = table(printed, MATTER)
    assert [column.name for column in shown.columns][-2:] == ["drift without it", "95% interval"]
    assert "no first-order estimates" in " ".join(shown.notes)
    text = page(found)
    assert "How far the output drifts, of the variance" in text
    assert re.search(r"drift \+[0-9.e-]+ of the variance[^;]* without it", text)


def test_an_encoder_decoder_has_maps_of_all_three_stages(made) -> None:
    found, printed = made("t5")
    data = printed.data["heads"]
    assert data["maps"]["heads"] == 4 * (2 + 3 + 3)
    text = page(found)
    assert 'data-head="cross/2:3"' in text


def test_a_model_of_sound_says_that_it_reads_no_text(made) -> None:
    _, printed = made("whisper")
    data = printed.data["heads"]
    assert "input_features" in data["maps"]["reason"]
    assert data["roles"]["reason"]
    assert printed.data["agrees"] is True


def test_without_a_tokenizer_each_part_says_why(tmp_path) -> None:
    folder = tiny_models.save("llama", tmp_path / "mute", tokenizer=False)
    found, printed = xrayed(folder, 100)
    data = printed.data["heads"]
    for part in ("roles", "importance", "removable", "maps"):
        assert "no tokenizer" in data[part]["reason"]
    assert widgets(found.heads) == ()
    assert page(found).count("no tokenizer") >= 3


def test_a_model_that_does_not_pass_through_the_door_is_named_and_the_rest_is_measured(tmp_path) -> None:
    import transformers

    config = transformers.FalconConfig(
        vocab_size=tiny_models.VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        new_decoder_architecture=False, multi_query=True, max_position_embeddings=64,
    )  # fmt: skip
    transformers.FalconForCausalLM(config).save_pretrained(tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    _, printed = xrayed(tmp_path, 150)
    for part in ("roles", "importance", "removable", "maps"):
        assert "FalconForCausalLM (falcon): its attention does not pass" in printed.data["heads"][part]["reason"]
    assert printed.data["agrees"] is True


def test_a_text_too_short_for_windows_says_how_much_is_needed(made) -> None:
    _, printed = made("llama", tokens=40)
    assert (
        "20 tokens; importance needs two windows of 16 in each, 64 tokens in all"
        in printed.data["heads"]["importance"]["reason"]
    )


def test_heads_can_be_looked_into_where_nothing_else_is_known(made) -> None:
    found, _ = made("llama")
    heads = dataclasses.replace(
        found.heads, roles=NotMeasured("no"), importance=NotMeasured("no"), removable=Removable("no")
    )
    text = page(dataclasses.replace(found, heads=heads))
    assert text.count('class="heads-grid"') == 1
    assert text.count("data-head=") == 8
    assert 'id="heads-view"' in text
