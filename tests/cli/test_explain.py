"""`manyheads explain`: the paths it names are those that a running model takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

import manyheads
from manyheads.cli.main import main
from manyheads.models.door.door import open_door
from support.tiny_transformers import build, inputs


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    status = main(["explain", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def paths(answer: dict[str, Any], step: str) -> list[str | None]:
    return [layer[step] and layer[step]["path"] for layer in answer["layers"]]


@pytest.mark.parametrize(
    ("words", "decode", "prefill"),
    [
        (["llama-3.1-8b"], ["kernel"], ["sdpa"]),
        (["llama-3.1-8b", "--context", "16"], ["sdpa"], ["sdpa"]),
        (["gpt-oss-20b"], ["kernel", "kernel"], ["tiled", "tiled"]),
        (["gemma-2-9b", "--kv-dtype", "int8"], ["kernel", "kernel"], ["tiled", "tiled"]),
        (["deepseek-v3"], ["kernel"], ["sdpa"]),
        (["qwen3-next-80b-a3b"], ["transformers", "kernel"], ["transformers", "sdpa"]),
        (["bert-base-uncased"], [None], ["sdpa"]),
        (["gqa(4096, 32/8x128) x 32", "--dtype", "fp32"], ["kernel"], ["sdpa"]),
        (["mha(512, 8x1100)"], ["sdpa"], ["sdpa"]),
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_paths(words: list[str], decode: list[Any], prefill: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = told(capsys, *words)
    assert status == 0
    assert answer["schema"] == "manyheads.explain/1"
    assert paths(answer, "decode") == decode
    assert paths(answer, "prefill") == prefill


def test_why(capsys: pytest.CaptureFixture[str]) -> None:
    _, answer = told(capsys, "mha(512, 8x1100)")
    assert "heads of at most 1024 elements, found 1100" in answer["layers"][0]["decode"]["reason"]
    _, answer = told(capsys, "gpt-oss-20b")
    assert "torch's SDPA has no sinks" in answer["layers"][0]["prefill"]["reason"]
    assert answer["layers"][0]["cache"] == "WindowLayer, the last 127 tokens in bf16"
    _, answer = told(capsys, "deepseek-v3", "--kv-dtype", "int8")
    assert answer["layers"][0]["decode"]["reason"] == (
        "absorbed: 128 heads share rows of 512 + 64; int8 latents are dequantized at each step"
    )
    assert answer["layers"][0]["layers"] == 61


@pytest.mark.parametrize("name", ["bloom-560m", "falcon-7b"])
def test_what_does_not_pass_the_door(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, answer = told(capsys, name)
    assert status == 1
    assert not answer["door"]["passes"]
    assert "does not pass through transformers' AttentionInterface" in answer["door"]["reason"]
    assert set(paths(answer, "decode")) == {"transformers"}


@pytest.mark.parametrize("name", ["llama", "gemma2", "deepseek_v3", "gpt_oss"])
def test_a_running_model_takes_them(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, ids = build(name), inputs(name, batch=1, tokens=30)["input_ids"]
    model.config.save_pretrained(tmp_path)
    _, answer = told(capsys, str(tmp_path / "config.json"), "--context", "30", "--dtype", "fp32")
    manyheads.enable()
    try:
        model.set_attn_implementation("manyheads")
        cache = manyheads.cache(model)
        taken = []
        with torch.no_grad(), open_door(model) as door:
            for step in (ids[:, :29], ids[:, 29:]):
                model(step, cache=cache, use_cache=True)
                taken.append({how.name for how in door.selected.values()})
    finally:
        manyheads.disable()
    assert set(paths(answer, "decode")) == taken[1]
    small = {"plain" if path == "tiled" else path for path in paths(answer, "prefill")}
    assert small == {"plain" if path == "tiled" else path for path in taken[0]}


def test_text_and_wrong_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "llama-3.1-8b"]) == 0
    text = capsys.readouterr().out
    for question in ("One new token: which path, and why?", "A prompt: which path", "What keeps the tokens?"):
        assert question in text
    for words, wrong in (
        (["--dtype", "fp8"], "--dtype 'fp8' is not one of fp32, bf16, fp16"),
        (["--kv-dtype", "q4"], "--kv-dtype 'q4' is not one of model, fp32, bf16, fp16, int8"),
        (["--context", "0"], "--context"),
    ):
        assert main(["explain", "llama-3.1-8b", *words]) == 2
        assert wrong in capsys.readouterr().err
