"""Bytes of a model's own cache, three ways: equal to the prediction for every family, and a wrong prediction shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manyheads.models.load.model import load
from manyheads.models.resident_bytes import Inputs, measure_cache, prompt_length
from manyheads.report.jsonform import as_json
from manyheads.spec import Block, Causal, Heads, Stack, StackSpec, Window
from support import tiny_models
from support.tiny_models import WINDOW

torch = pytest.importorskip("torch")

DECODERS = [family for family in tiny_models.FAMILIES if family != "bert"]
IDS = tuple(range(3, 24))  # a prompt of 20 and one more, past the window of 8


def inputs_of(family: str, model) -> Inputs:
    draw = torch.Generator().manual_seed(1)
    if family == "whisper":
        return Inputs(IDS, torch.randn(1, 8, 24, generator=draw).to(model.dtype), "input_features")
    if family == "t5":
        return Inputs(IDS, torch.tensor([IDS[:7]]), "input_ids")
    return Inputs(IDS)


def both(folder, dtype: str = "fp32"):
    loaded = load(folder, dtype=dtype)
    return loaded.model, loaded.stack


def measured(model, stack, inputs: Inputs, dtype: str = "fp32") -> dict:
    return as_json(measure_cache(model, stack, inputs, dtype=dtype, seed=0))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("family", DECODERS)
def test_every_number_is_as_predicted(tiny, family: str, dtype: str) -> None:
    model, stack = both(tiny(family), dtype)
    found = measure_cache(model, stack, inputs_of(family, model), dtype=dtype, seed=0)
    assert [one for one in found.numbers if one.equal is not True] == []
    assert len(found.numbers) == 6
    assert found.prompt_tokens == 20


def test_a_plain_cache_by_hand(tiny) -> None:
    # 2 layers x 2 KV heads x (8 + 8) x 4 bytes a token
    own = measured(*both(tiny("llama")), Inputs(IDS))
    for which in ("ideal", "logical", "storage"):
        assert own["prefill"][which]["measured"] == 20 * 256
        assert own["step"][which]["measured"] == 21 * 256


def test_a_window_by_hand(tiny) -> None:
    # A token sees 8 keys with its own; transformers keeps 7 past ones, after prefill as a view of all 20.
    own = measured(*both(tiny("mistral")), Inputs(IDS))
    assert [own["prefill"][which]["measured"] // 256 for which in ("ideal", "logical", "storage")] == [8, 7, 20]
    assert [own["step"][which]["measured"] // 256 for which in ("ideal", "logical", "storage")] == [8, 7, 8]


def test_cross_attention_keeps_the_encoder_s_tokens(tiny) -> None:
    model, stack = both(tiny("t5"))
    own = measured(model, stack, inputs_of("t5", model))
    # 3 layers x 4 heads x (8 + 8) x 4 bytes, for 20 tokens of its own and 7 of the encoder's
    assert own["prefill"]["logical"]["measured"] == (20 + 7) * 768
    assert own["source_tokens"] == 7


def with_attention(stack: StackSpec, **changes: object) -> StackSpec:
    blocks = tuple(
        Block((replace(b.attentions[0], **changes),), b.mlp, b.norm, b.norm_places) for b in stack.main.blocks
    )
    return StackSpec((Stack("decoder", stack.main.d_model, blocks),), context=stack.context)


def test_a_model_that_ignores_its_window_is_found_out(tiny) -> None:
    model, stack = both(tiny("llama"))
    own = measured(model, with_attention(stack, mask=Window(WINDOW)), Inputs(IDS))
    assert own["equal"] is False
    assert own["prefill"]["ideal"] == {"predicted": 8 * 256, "measured": 20 * 256, "equal": False, "reason": ""}


def test_a_window_that_was_not_predicted_is_found_out(tiny) -> None:
    model, stack = both(tiny("mistral"))
    own = measured(model, with_attention(stack, mask=Causal()), Inputs(IDS))
    assert own["prefill"]["ideal"]["predicted"] == 20 * 256
    assert own["prefill"]["ideal"]["measured"] == 8 * 256


def test_other_heads_than_predicted_are_found_out(tiny) -> None:
    model, stack = both(tiny("llama"))
    own = measured(model, with_attention(stack, kv=Heads(4, 8, 8)), Inputs(IDS))
    assert [own["step"][which]["equal"] for which in ("ideal", "logical", "storage")] == [False] * 3


def test_an_encoder_keeps_nothing(tiny) -> None:
    model, stack = both(tiny("bert"))
    found = measure_cache(model, stack, Inputs(()), dtype="fp32", seed=0)
    assert (found.numbers, found.equal) == ((), True)
    assert "keeps no cache" in found.reason


def test_looking_changes_no_output(tiny) -> None:
    model, stack = both(tiny("qwen3_next"))
    ids = torch.tensor([IDS])
    before = model(input_ids=ids).logits
    measure_cache(model, stack, Inputs(IDS), dtype="fp32", seed=0)
    assert torch.equal(model(input_ids=ids).logits, before)


def test_the_prompt_fills_a_window_and_fits_the_model(tiny) -> None:
    _, stack = both(tiny("mistral"))
    assert prompt_length(stack) == 63  # the model's 64, less the step
    assert prompt_length(with_attention(replace(stack, context=4096), mask=Window(800))) == 832
    assert prompt_length(with_attention(replace(stack, context=8192), mask=Window(4096))) == 512
    assert prompt_length(with_attention(replace(stack, context=0), mask=Causal())) == 512


@pytest.mark.real
def test_smollm2_holds_what_was_predicted(smollm2) -> None:
    stack, loaded = smollm2
    ids = tuple(loaded.tokenizer("The quick brown fox. " * 10)["input_ids"][:41])
    own = measured(loaded.model, stack, Inputs(ids))
    # 30 layers x 3 KV heads x (64 + 64) x 4 bytes a token
    assert own["equal"] is True
    for which in ("ideal", "logical", "storage"):
        assert own["prefill"][which]["measured"] == 40 * 46_080
        assert own["step"][which]["measured"] == 41 * 46_080
