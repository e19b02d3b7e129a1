"""Our caches for encoder-decoders: the encoder's tokens are all there, in every layer and format, however they are handed over."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

import manyheads
from manyheads.errors import BackendError
from manyheads.models.caches.saved import load_cache, save_cache
from support import rounding
from support.tiny_transformers import build, inputs

# t5gemma: the decoder of its first layer sees 3 tokens back, its encoder reads 11.
FAMILIES = ("t5", "bart", "marian", "whisper", "t5gemma")


@pytest.fixture(autouse=True)
def _disabled_afterwards() -> Iterator[None]:
    yield
    manyheads.disable()


def prompts(name: str) -> dict[str, Any]:
    return {key: x for key, x in inputs(name).items() if not key.startswith("decoder")}


def write(model: Any, batch: dict[str, Any], **options: Any) -> torch.Tensor:
    return model.generate(**batch, do_sample=False, max_new_tokens=8, min_new_tokens=8, pad_token_id=0, **options)


def crossing(cache: Any) -> list[Any]:
    """The layers that hold encoder tokens: T5's caches have as many layers as its encoder, which may be more."""
    return [layer for layer in cache.cross_attention_cache.layers if layer.is_initialized]


@pytest.mark.parametrize("attention", ["eager", "manyheads"])
@pytest.mark.parametrize("name", FAMILIES)
def test_step_by_step_it_is_the_whole(name: str, attention: str) -> None:
    """The decoder's window hides none of the encoder's keys: with the cache as without one."""
    manyheads.enable()
    model, batch = build(name), inputs(name)
    model.set_attn_implementation(attention)
    with torch.no_grad():
        encoded = model.get_encoder()(**prompts(name))
        cache = manyheads.cache(model)
        steps = [
            model(encoder_outputs=encoded, decoder_input_ids=token, cache=cache, use_cache=True).logits
            for token in batch["decoder_input_ids"].split(1, 1)
        ]
    assert {layer.keys.shape[2] for layer in crossing(cache)} == {encoded[0].shape[1]}
    whole = {**prompts(name), "decoder_input_ids": batch["decoder_input_ids"]}
    assert rounding.model(model, whole, use_cache=False).holds(torch.cat(steps, 1))


@pytest.mark.filterwarnings("ignore:.*`past_key_values` is deprecated")
@pytest.mark.parametrize("word", ["cache", "past_key_values"])
@pytest.mark.parametrize("name", FAMILIES)
def test_generate_takes_it_under_both_names(name: str, word: str) -> None:
    model, batch = build(name), prompts(name)
    expected = write(model, batch)
    manyheads.enable()
    model.set_attn_implementation("manyheads")
    for dtype, stored in (("model", None), ("fp32", torch.float32), ("int8", torch.int8)):
        cache = manyheads.cache(model, dtype=dtype)
        found = write(model, batch, **{word: cache})
        assert {layer.stored for layer in crossing(cache)} == {stored}
        assert all(layer.keys.shape[2] == crossing(cache)[0].keys.shape[2] >= 10 for layer in crossing(cache))
        if dtype != "int8":
            assert torch.equal(found, expected), dtype


def test_beams_and_a_second_call_go_on() -> None:
    """Where a cache is filled it is kept; a reset one starts over, also where generate wants to put its own there."""
    model, batch = build("t5gemma"), prompts("t5gemma")
    cache = manyheads.cache(model)
    assert torch.equal(write(model, batch, cache=cache, num_beams=3), write(model, batch, num_beams=3))
    cache.reset()
    assert torch.equal(write(model, batch, cache=cache), write(model, batch))
    manyheads.enable(cache=True)
    assert torch.equal(write(model, batch), write(build("t5gemma"), batch, use_cache=False))


def test_copies_and_files_hold_the_whole_encoder(tmp_path: Path) -> None:
    model, batch = build("t5gemma"), inputs("t5gemma")
    first, rest = batch["decoder_input_ids"].split((5, 2), 1)
    cache = manyheads.cache(model)
    with torch.no_grad():
        encoded = model.get_encoder()(input_ids=batch["input_ids"])
        model(encoder_outputs=encoded, decoder_input_ids=first, cache=cache, use_cache=True)
        save_cache(cache, tmp_path / "filled", model)
        copies = [copy.deepcopy(cache), pickle.loads(pickle.dumps(cache)), cache]
        copies.append(load_cache(tmp_path / "filled", model))
        found = [
            model(encoder_outputs=encoded, decoder_input_ids=rest, cache=each, use_cache=True).logits for each in copies
        ]
    assert all(torch.equal(each, found[0]) for each in found[1:])
    assert {layer.keys.shape[2] for each in copies for layer in crossing(each)} == {11}


@pytest.mark.parametrize("name", ["gemma2", "qwen3_next"])
def test_a_cache_is_taken_back_in_all_layers_or_in_none(name: str) -> None:
    """Of windows that have forgotten, and running states, the others would go on without."""
    model, ids = build(name), inputs(name)["input_ids"]
    cache = manyheads.cache(model)
    with torch.no_grad():
        model(ids, cache=cache, use_cache=True)
        with pytest.raises(BackendError, match=r"a window of 7 holds the last 6 of 11|one running state"):
            cache.crop(-3)
        assert {layer.get_seq_length() for layer in cache.layers if hasattr(layer, "get_seq_length")} == {11}


def test_taken_back_to_nothing_and_no_further() -> None:
    model, ids = build("gemma2"), inputs("gemma2")["input_ids"]
    cache = manyheads.cache(model)
    with torch.no_grad():
        expected = model(ids, use_cache=False).logits
        model(ids[:, :3] + 1, cache=cache, use_cache=True)
        with pytest.raises(BackendError, match="asked to take back 5 tokens of 3; valid: -3 to 0"):
            cache.crop(-5)
        cache.crop(-3)
        assert torch.allclose(model(ids, cache=cache, use_cache=True).logits, expected, atol=1e-5)
