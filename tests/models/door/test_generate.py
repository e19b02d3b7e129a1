"""Through the door while a model writes, is padded, or is trained with checkpointing: the same tokens, numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import DynamicCache, StaticCache

from manyheads.models.door.door import Call, open_door
from support import rounding
from support.tiny_transformers import CASES, build, inputs, logits

DECODERS = [
    "llama",
    "mistral",
    "gpt2",
    "gpt_neox",
    "gemma2",
    "gemma3_text",
    "gpt_oss",
    "deepseek_v3",
    "qwen3_next",
    "jamba",
]


def write(model: Any, batch: dict[str, Any], **options: Any) -> torch.Tensor:
    return model.generate(**batch, max_new_tokens=9, min_new_tokens=9, do_sample=False, pad_token_id=0, **options)


def prompts(name: str) -> dict[str, Any]:
    return {key: value for key, value in inputs(name, tokens=6).items() if not key.startswith("decoder")}


@pytest.mark.parametrize("name", [*DECODERS, "t5", "bart", "whisper"])
def test_greedy_tokens_are_the_same(name: str) -> None:
    model, batch = build(name), prompts(name)
    expected = write(model, batch)
    with open_door(model) as door:
        found = write(model, batch)
        assert torch.equal(found, expected)
        for path, count in door.calls.items():
            assert count == (1 if path.removeprefix("model.").startswith("encoder") else 9), path


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gemma2", "gpt_oss", "t5"])
def test_a_static_cache(name: str) -> None:
    model, batch = build(name), prompts(name)
    expected = write(model, batch)
    with open_door(model) as door:
        assert torch.equal(write(model, batch, cache_implementation="static", disable_compile=True), expected)
    assert door.uncalled() == ()


@pytest.mark.parametrize("kind", ["dynamic", "without its config", "static"])
@pytest.mark.parametrize("name", ["gpt_oss", "gemma2", "mistral"])
def test_sinks_and_windows_agree_in_full_chunked_and_cached(name: str, kind: str) -> None:
    """Case O54: whole, in one chunk after another, token by token; with caches that drop old tokens and that keep all."""
    model, ids = build(name), inputs(name, tokens=16)["input_ids"]
    exact = rounding.model(model, {"input_ids": ids})
    for steps in ([16], [5, 1, 7, 3], [1] * 16):
        cache: Any = (
            StaticCache(model.config, max_cache_len=20) if kind == "static"
            else DynamicCache(config=model.config) if kind == "dynamic" else DynamicCache()
        )  # fmt: skip
        got, at = [], 0
        with open_door(model):
            for step in steps:
                got.append(logits(model, {"input_ids": ids[:, at : at + step]}, cache=cache, use_cache=True))
                at += step
        assert exact.holds(torch.cat(got, 1)), steps


@pytest.mark.parametrize("name", ["llama", "mistral", "gpt2", "gpt_neox", "gpt_oss", "gemma2", "opt"])
@pytest.mark.parametrize("implementation", ["auto", "plain", "tiled"])
def test_a_left_padded_batch_equals_solo_runs(name: str, implementation: str) -> None:
    """Cases O87 and O89: prompts of 3 and 7 tokens; whoever calls the model gives positions that count from the mask."""
    model = build(name)
    draw = torch.Generator().manual_seed(5)
    short, long = (torch.randint(3, 90, (1, tokens), generator=draw) for tokens in (3, 7))
    ids = torch.cat([torch.nn.functional.pad(short, (4, 0)), long])
    mask = (torch.arange(7) >= torch.tensor([[4], [0]])).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    alone = [rounding.model(model, {"input_ids": one}) for one in (short, long)]
    calls: list[tuple[Call, torch.Tensor]] = []
    with open_door(model, implementation=implementation, observers=[lambda call, out: calls.append((call, out))]):
        batch = logits(model, {"input_ids": ids, "attention_mask": mask, "position_ids": positions})
    assert alone[0].holds(batch[:1, 4:])
    assert alone[1].holds(batch[1:])
    for call, out in calls:
        assert out[0, :, :4].abs().max() == 0  # padding sees nothing: zeros, not an average of the padding
        assert call.weights()[0, :, :, :4].max() == 0


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_generate_from_a_left_padded_batch(name: str) -> None:
    model = build(name)
    draw = torch.Generator().manual_seed(5)
    short, long = (torch.randint(3, 90, (1, tokens), generator=draw) for tokens in (3, 7))
    ids = torch.cat([torch.nn.functional.pad(short, (4, 0)), long])
    mask = (torch.arange(7) >= torch.tensor([[4], [0]])).long()
    if name == "t5":  # relative positions: nothing to shift
        alone = [write(model, {"input_ids": one}) for one in (short, long)]
        with open_door(model):
            batch = write(model, {"input_ids": ids, "attention_mask": mask})
        assert torch.equal(batch, torch.cat(alone))
        return
    alone = [write(model, {"input_ids": one})[:, -9:] for one in (short, long)]
    with open_door(model):
        batch = write(model, {"input_ids": ids, "attention_mask": mask})
    assert torch.equal(batch[:, -9:], torch.cat(alone))


def test_padding_of_an_encoder_and_of_what_cross_attention_reads() -> None:
    for name in ("bert", "t5", "bart", "modernbert"):
        model, batch = build(name), inputs(name)
        batch["attention_mask"] = (torch.arange(11) < torch.tensor([[11], [6]])).long()
        kept = slice(None) if "decoder_input_ids" in batch else slice(0, 6)

        def seen(out: Any, kept: slice = kept) -> torch.Tensor:
            return torch.cat((out[0][0], out[0][1, kept]))

        exact = rounding.model(model, batch, pick=seen)
        with torch.no_grad(), open_door(model):
            assert exact.holds(seen(model(**batch))), name


def test_a_decoder_used_in_both_directions() -> None:
    """config.is_causal = False: no mask and a module that calls itself causal; the mask must say so."""
    model, batch = build("llama", attention="eager"), inputs("llama")
    causal = logits(model, batch)
    model.config.is_causal = False
    both = rounding.model(model, batch)
    assert both.told(causal)
    with open_door(model):
        assert both.holds(logits(model, batch))


def test_packed_sequences_do_not_see_each_other() -> None:
    model, ids = build("llama"), inputs("llama", batch=1, tokens=11)["input_ids"]
    positions = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6]])
    with open_door(model):
        packed = logits(model, {"input_ids": ids, "position_ids": positions}, use_cache=False)
    assert rounding.model(model, {"input_ids": ids[:, :4]}).holds(packed[:, :4])
    assert rounding.model(model, {"input_ids": ids[:, 4:]}).holds(packed[:, 4:])


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
@pytest.mark.parametrize("reentrant", [True, False])
def test_each_call_is_recorded_once_under_checkpointing(name: str, *, reentrant: bool) -> None:
    """Case O84: the backward pass runs the forward again; gates act in it, observers and counts do not."""
    changes = {"dropout_rate": 0.0} if name == "t5" else {}
    changes |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0} if name == "gpt2" else {}
    results = []
    for checkpointing in (False, True):
        model, batch = build(name, **changes), inputs(name)
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
        gate = torch.full((6,), 0.5, requires_grad=True)
        calls: list[str] = []
        with open_door(
            model, mode="train", observers=[lambda call, out, seen=calls: seen.append(call.path)],
            gates=[lambda call, out, by=gate: out * by.view(1, -1, 1, 1)],
        ) as door:  # fmt: skip
            model(**batch, use_cache=False)[0].square().mean().backward()
        results.append((gate.grad, next(model.parameters()).grad))
        assert set(door.calls.values()) == {1}
        assert sorted(calls) == sorted(door.calls)
    if not reentrant:  # torch's older kind gives no gradient to what is not an input of the block
        assert torch.allclose(results[0][0], results[1][0], rtol=1e-4)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3", "bert", "t5"])
def test_gradients_are_the_models_own(name: str) -> None:
    model, batch = build(name), inputs(name)
    gradients = []
    for implementation in (None, "auto", "plain", "tiled"):
        model.zero_grad()
        if implementation is None:
            model(**batch)[0].square().mean().backward()
        else:
            with open_door(model, implementation=implementation):
                model(**batch)[0].square().mean().backward()
        gradients.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
    for other in gradients[1:]:
        assert other.keys() == gradients[0].keys()
        for key, grad in other.items():
            scale = max(float(gradients[0][key].abs().max()), 1e-4)  # a key's bias moves nothing: its gradient is noise
            assert float((grad - gradients[0][key]).abs().max()) / scale < 1e-3, key


def test_dropout_is_on_in_training_and_off_in_evaluation() -> None:
    model, batch = build("llama", attention_dropout=0.5), inputs("llama")
    with open_door(model, mode="train"):
        assert not torch.equal(logits(model, batch), logits(model, batch))
    assert not model.training
    with open_door(model):
        assert torch.equal(logits(model, batch), logits(model, batch))


def test_every_family_of_the_table_is_tried() -> None:
    assert set(DECODERS) <= set(CASES)
