"""`manyheads models`: every figure derived from a config equals what was published; filters, orders, records."""

from __future__ import annotations

import json

import pytest

from manyheads.cli.main import main
from manyheads.facts.census import CensusEntry, census


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, list[dict[str, object]]]:
    """(exit status, the models of the JSON answer)"""
    status = main(["models", *words, "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "manyheads.models/1"
    return status, answer["models"]


def names(models: list[dict[str, object]]) -> list[object]:
    return [model["name"] for model in models]


@pytest.mark.parametrize("entry", census(), ids=lambda entry: entry.name)
def test_what_follows_from_the_config_is_what_was_published(
    entry: CensusEntry, capsys: pytest.CaptureFixture[str]
) -> None:
    status, (here,) = listed(capsys, entry.name)
    assert status == 0
    published = entry.published
    for key in ("parameters", "layers", "d_model", "heads", "head_dim", "v_head_dim"):
        assert here[key] == published.get(key, here[key]), key
    if "parameters_stated" in published:  # papers cut as often as they round: within one unit of the last digit
        stated = published["parameters_stated"].removesuffix("B")
        assert abs(here["parameters"] / 1e9 - float(stated)) < 10 ** -len(stated.partition(".")[2])
    if here["scheme"] == "mla":
        assert here["kv_heads"] is None  # one latent for all heads; the published 128 is how the config spells it
    else:
        assert here["kv_heads"] == published["kv_heads"]
    if entry.config["model_type"] == "bert":
        assert here["kv_bytes_per_token_16bit"] == 0  # an encoder keeps no cache
    elif "kv_bytes_per_token_16bit" in published:
        assert here["kv_bytes_per_token_16bit"] == published["kv_bytes_per_token_16bit"]


def test_the_list_has_every_model_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    status, models = listed(capsys)
    assert status == 0
    assert names(models) == [entry.name for entry in census()]
    assert names(models)[0] == "bert-base-uncased"


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("gpt2", "mha"),
        ("llama-2-13b", "mha"),
        ("llama-2-70b", "gqa"),
        ("falcon-7b", "mqa"),
        ("gemma-2b", "mqa"),
        ("olmo-2-13b", "mha"),
        ("deepseek-v3", "mla"),
        ("minicpm3-4b", "mla"),
        ("qwen3-next-80b-a3b", "mixed"),
    ],
)
def test_the_scheme_of_a_model(name: str, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, (model,) = listed(capsys, name)
    assert model["scheme"] == scheme


def test_filters_by_scheme(capsys: pytest.CaptureFixture[str]) -> None:
    assert names(listed(capsys, "--scheme", "mqa")[1]) == ["falcon-7b", "gemma-2b", "gemma-3-1b"]
    assert names(listed(capsys, "--scheme", "mla")[1]) == [
        "deepseek-v2-lite",
        "deepseek-v2",
        "minicpm3-4b",
        "deepseek-v3",
    ]
    assert names(listed(capsys, "--scheme", "linear")[1]) == ["qwen3-next-80b-a3b"]
    windowed = names(listed(capsys, "--scheme", "window")[1])
    assert {"mistral-7b-v0.1", "gemma-2-9b", "gemma-3-1b", "gpt-oss-20b", "phi-3-mini-4k"} <= set(windowed)
    assert not {"mistral-7b-v0.3", "qwen2.5-7b", "qwen1.5-7b", "llama-3-8b"} & set(windowed)


def test_words_narrow_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert names(listed(capsys, "gpt_oss")[1]) == ["gpt-oss-20b", "gpt-oss-120b"]
    assert set(names(listed(capsys, "olmo", "13b")[1])) == {"olmo-2-13b"}
    assert names(listed(capsys, "Llama-2", "--scheme", "mha")[1]) == ["llama-2-7b", "llama-2-13b"]


@pytest.mark.parametrize(
    ("order", "key"),
    [
        ("year", "year"),
        ("heads", "heads"),
        ("cache", "kv_bytes_per_token_16bit"),
        ("parameters", "parameters"),
        ("name", "name"),
    ],
)
def test_orders_run_from_small_to_large_and_back(order: str, key: str, capsys: pytest.CaptureFixture[str]) -> None:
    values = [model[key] for model in listed(capsys, "--sort", order)[1]]
    assert values == sorted(values)
    back = [model[key] for model in listed(capsys, "--sort", order, "--reverse")[1]]
    assert back == sorted(values, reverse=True)


def test_the_largest_caches_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    models = listed(capsys, "--sort", "cache", "--reverse")[1]
    assert set(names(models)[:2]) == {"llama-65b", "qwen1.5-72b"}
    assert models[0]["kv_bytes_per_token_16bit"] == 2_621_440


def test_one_name_shows_its_record_with_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "deepseek-ai/DeepSeek-V3"]) == 0
    text = capsys.readouterr().out
    for expected in (
        "DeepSeek-V3 (deepseek-v3), 2024-12",
        "671,026,419,200",
        "70,272",
        "arXiv 2412.19437",
        "61 x",
        "mla(",
    ):
        assert expected in text
    status, (model,) = listed(capsys, "deepseek-v3")
    assert status == 0
    assert model["config"]["kv_lora_rank"] == 512
    assert model["published"]["active_parameters"]["both_embeddings"] == 37_552_297_472
    assert model["sources"]


def test_the_list_fits_eighty_columns(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any("llama-2-70b" in line and "64/8" in line and "327,680" in line and "68.98B" in line for line in lines)


def test_no_model_is_the_answer_no(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "zzz"]) == 1
    assert "No model of the census fits zzz" in capsys.readouterr().out
    assert listed(capsys, "falcon", "--scheme", "mla") == (1, [])


def test_an_unknown_scheme_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--scheme", "mqaa"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert "mqa" in captured.err


def test_the_answer_goes_to_a_file(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "models.json"
    assert main(["models", "gpt2", "--json", "--output", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(target.read_text())["models"][0]["parameters"] == 124_439_808
