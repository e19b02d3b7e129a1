"""Regrouping as a whole: nothing lost where nothing has to be, hidden heads found, what cannot be refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from manyheads.convert.regroup import regroup
from manyheads.convert.source import open_source
from manyheads.errors import ConversionError
from support import tiny_transformers as tiny
from support.hidden_heads import hide, write_attention
from support.regrouping import as_model, difference, kv_heads, windows

# halves, biases, window, softcap and window, interleaved, partial, sinks, none and biases, two-sided, relative buckets
FAMILIES = ("llama", "qwen2", "mistral", "gemma2", "cohere", "gptj", "gpt_neox", "glm", "gpt_oss", "gpt2", "opt", "bert",
            "roberta", "modernbert", "phi")  # fmt: skip


@pytest.mark.parametrize("method", ["closed", "layerfit", "mean", "first", "procrustes"])
def test_as_many_heads_as_before_change_nothing(method: Any) -> None:
    model = tiny.build("llama")
    made = regroup(model, kv_heads(model), method=method, calibration=windows())
    before = open_source(model).weights
    assert made.stack == made.before
    assert all(torch.equal(made.weights[name], before[name]) for name in made.weights)


@pytest.mark.parametrize("name", FAMILIES)
def test_hidden_heads_are_found_and_nothing_is_lost(name: str) -> None:
    model = tiny.build(name, dtype=torch.float64)
    count = 2 if kv_heads(model) > 2 else 1
    hidden, base = hide(model, count)
    made = regroup(hidden, count, calibration=windows())
    assert difference(hidden, as_model(hidden, made), name) < 1e-6
    for figures in made.layers:
        source = open_source(hidden)
        each = source.stack.main.blocks[figures.layer].attentions[0].num_heads // len(base[figures.layer])
        for group in figures.groups:
            assert len({base[figures.layer][head // each] for head in group}) == 1
        assert figures.keys_left_out < 1e-8
        assert figures.values_left_out < 1e-8


def test_hidden_heads_in_single_precision() -> None:
    hidden, _ = hide(tiny.build("persimmon-no-norm"), 2)
    assert difference(hidden, as_model(hidden, regroup(hidden, 2, calibration=windows())), "persimmon-no-norm") < 1e-3


def test_more_heads_are_the_same_function() -> None:
    small, large = tiny.build("llama"), tiny.build("llama", num_key_value_heads=6)
    made = regroup(small, 6)
    large.load_state_dict({**small.state_dict(), **{
        name: tensor for name, tensor in large.state_dict().items() if ".k_proj." in name or ".v_proj." in name
    }})  # fmt: skip
    write_attention(large, open_source(large), {name: made.weights[name] for name in made.weights if ".self." in name})
    assert difference(small, large, "llama") == pytest.approx(0, abs=1e-6)
    assert made.stack == open_source(large).stack


@pytest.mark.parametrize("method", ["mean", "first"])
def test_pooling_is_that_of_neighbours(method: Any) -> None:
    model = tiny.build("gpt2")
    made, before = regroup(model, 3, method=method), open_source(model).weights
    for name in made.weights:
        own = name.rpartition(".self.")[2]
        if own not in ("k", "v", "k.bias", "v.bias"):
            assert torch.equal(made.weights[name], before[name])
            continue
        pairs = before[name].unflatten(0, (3, 2))
        wanted = pairs.double().mean(1).float() if method == "mean" else pairs[:, 0]
        torch.testing.assert_close(made.weights[name], wanted)


def test_closed_form_loses_less_than_what_does_not_look() -> None:
    model = tiny.build("llama")
    lost = {
        method: difference(model, as_model(model, regroup(model, 1, method=method, calibration=windows())), "llama")
        for method in ("closed", "mean", "first", "procrustes")
    }
    assert lost["closed"] == min(lost.values())


def test_a_number_of_heads_for_each_layer() -> None:
    model = tiny.build("gpt2")
    made = regroup(model, {0: 3}, calibration=windows())
    assert [block.attentions[0].kv.num_kv_heads for block in made.stack.main.blocks][:2] == [3, 6]
    assert [figures.layer for figures in made.layers] == [0]


def test_counts_that_share_no_old_head() -> None:
    model = tiny.build("gpt2")  # 6 heads
    made = regroup(
        tiny.build("llama", num_attention_heads=12, num_key_value_heads=4, head_dim=6), 3, calibration=windows()
    )
    assert made.stack.main.blocks[0].attentions[0].kv.num_kv_heads == 3
    assert sorted(head for group in made.layers[0].groups for head in group) == list(range(12))
    with pytest.raises(ConversionError, match="4 KV heads for 6 query heads and 6 KV heads; valid: 1, 2, 3, 6"):
        regroup(model, 4, calibration=windows())


@pytest.mark.parametrize(
    ("name", "said"), [("qwen3", "QK norm"), ("deepseek_v3", "keeps no key/value heads"), ("bart", "one stack")]
)
def test_what_cannot_be_is_refused_with_the_reason(name: str, said: str) -> None:
    with pytest.raises(ConversionError, match=said):
        regroup(tiny.build(name), 1, calibration=windows())


def test_a_method_that_is_none() -> None:
    with pytest.raises(ConversionError, match="closed, layerfit, mean, first, procrustes"):
        regroup(tiny.build("llama"), 1, method="magic")  # type: ignore[arg-type]
