"""The x-ray as one report: what it says of models of many families, and of those that cannot be scored."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from manyheads.checkpoints import open_model
from manyheads.errors import ManyheadsError
from manyheads.models.load.text import Reading, shipped_text
from manyheads.report import Report
from manyheads.report.jsonform import dumps
from manyheads.report.text import as_text
from manyheads.xray import run as xray_room
from manyheads.xray.run import Request, xray
from manyheads.xray.tables import report
from support import tiny_models

torch = pytest.importorskip("torch")


def request(folder, **settings) -> Request:
    defaults = {"tokens": 150, "heads": None}
    return Request(open_model(folder), settings.pop("reading", shipped_text()), threads=1, **(defaults | settings))


def xrayed(asked: Request) -> Report:
    return report(xray(asked))


@pytest.fixture(scope="module")
def reports(tiny):
    made = {}

    def of(family: str):
        return made.setdefault(family, xrayed(request(tiny(family))))

    return of


LANGUAGE_MODELS = [family for family in tiny_models.FAMILIES if family not in ("bert", "t5", "whisper")]


@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_family_is_as_predicted_and_prints(reports, family: str) -> None:
    made = reports(family)
    data = json.loads(dumps(made))
    assert data["schema"] == "manyheads.xray/1"
    assert data["agrees"] is True
    assert data["class"] == tiny_models.FAMILIES[family][0]
    assert data["cost"]["schema"] == "manyheads.cost/1"
    assert data["cost"]["parameters"]["total"] == data["parameters"]["loaded"] + data["parameters"]["loaded_buffers"]
    text = as_text(made)
    assert "as predicted" in text
    assert f"Next: {data['next_command']}" in text
    assert data["next_command"].startswith("manyheads cost ")


@pytest.mark.parametrize("family", LANGUAGE_MODELS)
def test_random_weights_are_as_perplexed_as_a_uniform_guess(reports, family: str) -> None:
    text = reports(family).data["text"]
    assert text["scores"]["perplexity"] == pytest.approx(tiny_models.VOCABULARY, rel=0.1)
    assert text["scores"]["loss"] == pytest.approx(math.log(text["scores"]["perplexity"]))
    assert (text["tokens"], text["window"], text["bos"]) == (150, 64, False)
    assert text["scores"]["scored_tokens"] == 63 + 63 + 21
    assert [window["tokens"] for window in text["scores"]["windows"]] == [63, 63, 21]
    assert text["sha256"] == shipped_text().sha256


def test_what_has_no_perplexity_says_so_and_is_measured_otherwise(reports) -> None:
    bert, t5 = reports("bert").data, reports("t5").data
    assert (bert["text"]["scores"], t5["text"]["scores"]) == (None, None)
    assert "sees both sides" in bert["text"]["reason"]
    assert "what the encoder read" in t5["text"]["reason"]
    assert bert["text"]["forward"]["output_shape"] == [1, 64, tiny_models.VOCABULARY]
    assert bert["text"]["forward"]["finite"] is True
    assert "keeps no cache" in bert["cache"]["reason"]
    assert t5["cache"]["class"] == "EncoderDecoderCache"


def test_without_a_tokenizer_the_rest_is_still_measured(tmp_path) -> None:
    data = xrayed(request(tiny_models.save("llama", tmp_path / "mute", tokenizer=False))).data
    assert data["text"]["scores"] is None
    assert "no tokenizer" in data["text"]["reason"]
    assert (data["text"]["tokens"], data["agrees"]) == (0, True)
    assert data["cache"]["prefill"]["ideal"]["equal"] is True


def test_a_tokenizer_of_another_model_is_not_taken_for_its_own(tiny, tmp_path) -> None:
    import shutil

    folder = tmp_path / "stranger"
    shutil.copytree(tiny("llama"), folder)
    tiny_models.save_tokenizer(folder, vocabulary=900, text=shipped_text().text)
    data = xrayed(request(folder)).data
    assert "makes token" in data["text"]["reason"]
    assert "the model knows 384" in data["text"]["reason"]
    assert data["agrees"] is True


def test_bos_is_asked_for_and_recorded(tiny) -> None:
    with_bos = xrayed(request(tiny("llama"), bos=True)).data["text"]
    assert (with_bos["bos"], with_bos["window"], with_bos["tokenizer_adds_bos"]) == (True, 63, False)


def test_bos_where_there_is_none(tiny, tmp_path) -> None:
    import shutil

    folder = tmp_path / "no-bos"
    shutil.copytree(tiny("llama"), folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "bos_token"}))
    with pytest.raises(ManyheadsError, match="has no beginning-of-text token"):
        xrayed(request(folder, bos=True))


def test_a_text_of_one_token_is_refused(tiny) -> None:
    short = Reading("short.txt", "a", "0" * 64, shipped=False)
    with pytest.raises(ManyheadsError, match=r"^short\.txt is 1 token long"):
        xrayed(request(tiny("llama"), reading=short))


def test_a_mismatch_is_shown_and_never_hidden(tiny, monkeypatch) -> None:
    from manyheads.models.resident_bytes import measure_cache

    def one_more(*words, **options):
        found = measure_cache(*words, **options)
        wrong = dataclasses.replace(found.prefill.ideal, measured=found.prefill.ideal.measured + 1, equal=False)
        return dataclasses.replace(found, prefill=dataclasses.replace(found.prefill, ideal=wrong), equal=False)

    monkeypatch.setattr(xray_room, "measure_cache", one_more)
    made = xrayed(request(tiny("llama")))
    assert made.data["agrees"] is False
    text = as_text(made)
    assert "DIFFERS by +1" in text
    assert "MISMATCH: 1 of 7 numbers" in text


def test_a_model_that_does_not_run_is_one_line(tiny, monkeypatch) -> None:
    def broken(*words, **options):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied\nmore lines")

    monkeypatch.setattr(xray_room, "score", broken)
    with pytest.raises(ManyheadsError, match=r"transformers cannot run it \(RuntimeError: mat1 and mat2") as error:
        xrayed(request(tiny("llama")))
    assert "\n" not in str(error.value)


def test_numbers_that_are_not_finite_are_null_and_said(tiny, monkeypatch) -> None:
    from manyheads.models.scoring import Scores

    monkeypatch.setattr(xray_room, "score", lambda *w, **o: Scores((math.nan,), (9,), 0.1))
    made = xrayed(request(tiny("llama")))
    assert json.loads(dumps(made))["text"]["scores"]["perplexity"] is None
    assert "not finite" in as_text(made)


def test_the_same_request_gives_the_same_numbers(tiny) -> None:
    first, second = (xrayed(request(tiny("gpt2"), seed=3)).data for _ in range(2))
    for key in ("parameters", "cache", "shape", "cache_curve"):
        assert first[key] == second[key]
    for key in ("scores", "shuffled"):
        assert first["text"][key]["loss"] == second["text"][key]["loss"]
    assert xrayed(request(tiny("gpt2"), seed=4)).data["text"]["shuffled"]["loss"] != first["text"]["shuffled"]["loss"]


def test_contexts_asked_for_are_priced(tiny) -> None:
    cost = xrayed(request(tiny("llama"), contexts=(16, 32))).data["cost"]
    assert [row["context"] for row in cost["by_context"]] == [16, 32]


def test_the_next_command_is_one_that_works(reports) -> None:
    import shlex

    from manyheads.cli.main import main

    for family in ("llama", "mistral", "gpt2", "deepseek_v3", "bert", "t5"):
        words = shlex.split(reports(family).data["next_command"])
        assert main([*words[1:], "--json"]) == 0, words


@pytest.mark.real
def test_smollm2_reads_the_shipped_text_far_better_than_shuffled(smollm2) -> None:
    from manyheads.models.scoring import score, shuffled, token_ids

    _, loaded = smollm2
    everything = token_ids(loaded.tokenizer, shipped_text().text)
    assert 5_500 < len(everything) < 6_500
    ids = everything[:512]
    written = score(loaded.model, ids, window=512)
    assert 8 < written.perplexity < 40
    assert score(loaded.model, shuffled(ids, 0), window=512).perplexity > 20 * written.perplexity
