"""A cache on disk: written whole, mapped again, gone on with token by token, refused where it does not belong."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file
from transformers import DynamicCache

import manyheads
from manyheads.checkpoints import safetensors_header
from manyheads.errors import BackendError, CheckpointError, ManyheadsError
from manyheads.models.caches.saved import fingerprint, load_cache, save_cache
from support.tiny_transformers import build, inputs


def write(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    return model.generate(ids, max_new_tokens=9, min_new_tokens=9, do_sample=False, pad_token_id=0, **options)


def filled(model: Any, ids: torch.Tensor, dtype: str = "model") -> Any:
    cache = manyheads.cache(model, dtype=dtype)
    with torch.no_grad():
        model(ids, cache=cache, use_cache=True)
    return cache


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma2", "gpt_oss", "deepseek_v3", "qwen3_next", "jamba"])
@pytest.mark.parametrize("dtype", ["model", "bf16", "int8"])
@pytest.mark.filterwarnings("ignore:manyheads. a cache in a format:UserWarning")
def test_gone_on_with_as_if_never_left(name: str, dtype: str, tmp_path: Path) -> None:
    model, ids = build(name), inputs(name, tokens=12)["input_ids"]
    cache = filled(model, ids[:, :11], dtype)
    save_cache(cache, tmp_path / "prompt.safetensors", model)
    expected = write(model, ids, cache=cache)
    found = write(model, ids, cache=load_cache(tmp_path / "prompt.safetensors", model))
    assert torch.equal(found, expected)
    if dtype == "model":
        assert torch.equal(found, write(model, ids))
    # the file was mapped, not written to
    assert torch.equal(write(model, ids, cache=load_cache(tmp_path / "prompt.safetensors", model)), expected)
    assert os.listdir(tmp_path) == ["prompt.safetensors"]


def test_an_encoder_decoder(tmp_path: Path) -> None:
    model, batch = build("bart"), inputs("bart")
    cache = manyheads.cache(model)
    with torch.no_grad():
        encoded = model.get_encoder()(input_ids=batch["input_ids"])
        model(encoder_outputs=encoded, decoder_input_ids=batch["decoder_input_ids"], cache=cache)
        save_cache(cache, tmp_path / "c", model)
        step = {"encoder_outputs": encoded, "decoder_input_ids": batch["decoder_input_ids"][:, :1]}
        expected = model(**step, cache=cache)[0]
        again = load_cache(tmp_path / "c", model)
        assert all(again.is_updated.values())
        assert torch.equal(model(**step, cache=again)[0], expected)


def test_any_reader_of_safetensors_reads_it(tmp_path: Path) -> None:
    model, ids = build("llama"), inputs("llama", tokens=12)["input_ids"]
    cache = filled(model, ids)
    save_cache(cache, tmp_path / "c", model)
    held = load_file(tmp_path / "c")
    for number, layer in enumerate(cache.layers):
        assert torch.equal(held[f"self.{number}.keys0"], layer.keys)
        assert torch.equal(held[f"self.{number}.values0"], layer.values)


def test_another_model_or_dtype_is_refused(tmp_path: Path) -> None:
    model, ids = build("llama"), inputs("llama", tokens=12)["input_ids"]
    save_cache(filled(model, ids), tmp_path / "c", model)
    same, other = build("llama"), build("llama")
    assert load_cache(tmp_path / "c", same).get_seq_length() == 12
    other.model.embed_tokens.weight.data[0, 0] += 1
    for wrong, why in (
        (other, "a cache of another model"),
        (build("llama", rope_theta=7.0), "a cache of another model"),
        (build("llama", dtype=torch.bfloat16), "a cache of a model in torch.float32; this one is in torch.bfloat16"),
    ):
        with pytest.raises(CheckpointError, match=why):
            load_cache(tmp_path / "c", wrong)


def test_where_and_how_a_model_is_run_does_not_matter() -> None:
    model, other = build("llama", attention="eager"), build("llama", attention="sdpa")
    other.config._name_or_path = "somewhere/else"
    assert fingerprint(model) == fingerprint(other)


def test_what_is_no_cache_is_refused_and_nothing_is_left(tmp_path: Path) -> None:
    model, ids = build("llama"), inputs("llama", tokens=12)["input_ids"]
    with pytest.raises(BackendError, match="the cache is empty"):
        save_cache(manyheads.cache(model), tmp_path / "c", model)
    with pytest.raises(BackendError, match="layer 0 of the cache is a DynamicLayer, which is not ours"):
        save_cache(DynamicCache(config=model.config), tmp_path / "c", model)
    with pytest.raises(ManyheadsError, match="does not exist"):
        save_cache(filled(model, ids), tmp_path / "none" / "c", model)
    assert os.listdir(tmp_path) == []
    save_cache(filled(model, ids), tmp_path / "c", model)
    data = (tmp_path / "c").read_bytes()
    (tmp_path / "short").write_bytes(data[:-1])
    with pytest.raises(CheckpointError, match="truncated"):
        load_cache(tmp_path / "short", model)
    model.save_pretrained(tmp_path / "m")
    with pytest.raises(CheckpointError, match="no saved cache"):
        load_cache(tmp_path / "m" / "model.safetensors", model)
    with pytest.raises(CheckpointError):
        load_cache(tmp_path / "nothing", model)


def test_its_layers_are_read_however_many_they_are_and_damage_is_told(tmp_path: Path, monkeypatch) -> None:
    model, ids = build("llama"), inputs("llama", tokens=12)["input_ids"]
    save_cache(filled(model, ids), tmp_path / "c", model)
    monkeypatch.setattr(safetensors_header, "_MAX_METADATA", 80)  # the list of layers is longer, the rest is not
    load_cache(tmp_path / "c", model)
    monkeypatch.undo()
    data = (tmp_path / "c").read_bytes()
    assert b'\\"kind\\"' in data
    (tmp_path / "c").write_bytes(data.replace(b'\\"kind\\"', b'\\"mind\\"'))
    with pytest.raises(CheckpointError, match="damaged: the list of its layers cannot be read"):
        load_cache(tmp_path / "c", model)


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = build("llama"), inputs("llama", tokens=12)["input_ids"]
    save_cache(filled(model, ids), tmp_path / "c", model)
    before = (tmp_path / "c").read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ManyheadsError, match="No space left on device"):
        save_cache(filled(model, ids[:, :3]), tmp_path / "c", model)
    assert (tmp_path / "c").read_bytes() == before
    assert os.listdir(tmp_path) == ["c"]
