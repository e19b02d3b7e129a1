"""Models of the census against figures from outside: exact parameter counts, cache bytes, weights of one layer."""

from __future__ import annotations

import pytest

from manyheads.checkpoints import open_model, read_config
from manyheads.facts.census import CensusEntry, census, find
from manyheads.spec import AttentionSpec, Heads, Latent, StackSpec, State, Window, count, weights

ENTRIES = census()


def attentions(stack: StackSpec) -> list[AttentionSpec]:
    return [block.attention for block in stack.main.blocks if block.attention is not None]


def bytes_16bit(stack: StackSpec, tokens: int, *, windows: bool = True) -> int:
    """Ideal cache bytes of a sequence, by hand: K (q + v) or c + r elements a token and layer, at most W tokens."""
    total = 0
    for a in attentions(stack):
        kept = min(tokens, a.mask.keys) if windows and isinstance(a.mask, Window) else tokens
        if isinstance(a.kv, Heads):
            total += 2 * kept * a.kv.num_kv_heads * (a.kv.head_dim + a.kv.v_head_dim)
        elif isinstance(a.kv, Latent):
            total += 2 * kept * (a.kv.rank + a.kv.rope_dim)
    return total


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_published_figures_come_out(entry: CensusEntry) -> None:
    found = read_config(entry.config, source=entry.name)
    published, stack = entry.published, found.stack
    first = attentions(stack)[0]
    softmax = next((a for a in attentions(stack) if not isinstance(a.kv, State)), first)
    assert stack.layers == published["layers"]
    assert stack.main.d_model == published["d_model"]
    assert softmax.num_heads == published["heads"]
    assert softmax.head_dim == published["head_dim"]
    if isinstance(softmax.kv, Heads):
        assert softmax.kv.num_kv_heads == published["kv_heads"]
    if "parameters" in published:
        inventory = weights(stack)
        # DeepSeek-V3's published total includes its router's correction, which is a buffer.
        assert published["parameters"] in (count(inventory), count(inventory, buffers=True))
    if "kv_bytes_per_token_16bit" in published:
        assert bytes_16bit(stack, 1, windows=False) == published["kv_bytes_per_token_16bit"]
    assert found.unknown_keys == ()


def test_all_59_configs_with_an_exact_count_are_among_them() -> None:
    assert sum("parameters" in entry.published for entry in ENTRIES) >= 59


# facts.md, section 4.6: weights of one attention layer, norms apart.
LAYERS = [
    ("gpt2", 2_362_368), ("bert-base-uncased", 2_362_368), ("whisper-large-v2", 6_557_440), ("llama-2-7b", 67_108_864),
    ("llama-3-8b", 41_943_040), ("mistral-7b-v0.1", 41_943_040), ("llama-2-70b", 150_994_944),
    ("llama-3.1-405b", 570_425_344), ("gemma-2b", 9_437_184), ("gemma-7b", 50_331_648), ("gemma-2-9b", 44_040_192),
    ("gemma-2-27b", 56_623_104), ("olmo-2-32b", 62_914_560), ("t5-11b", 67_108_864), ("deepseek-v2-lite", 13_762_560),
    ("deepseek-v2", 149_225_472), ("deepseek-v3", 187_105_280),
]  # fmt: skip


@pytest.mark.parametrize(("name", "expected"), LAYERS)
def test_weights_of_one_attention_layer(name: str, expected: int) -> None:
    attention = attentions(open_model(name).stack)[0]
    assert sum(w.elements for w in weights(attention) if "norm" not in w.name) == expected


def test_qwen2_7b_layer() -> None:
    config = {"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
              "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064}  # fmt: skip
    assert count(weights(attentions(read_config(config).stack)[0])) == 29_364_736


def test_o75_sliding_layers_count_at_length_one() -> None:
    assert bytes_16bit(open_model("gpt-oss-120b").stack, 1) == 73_728


def test_o76_gemma3_1b_at_32768_tokens() -> None:
    stack = open_model("gemma-3-1b").stack
    assert bytes_16bit(stack, 32_768) == 139 * 2**20
    assert bytes_16bit(stack, 32_768, windows=False) == 832 * 2**20


def test_o79_and_o81_deepseek_v3() -> None:
    stack = open_model("deepseek-v3").stack
    kv = attentions(stack)[0].kv
    assert isinstance(kv, Latent)
    assert kv.rank + kv.rope_dim == 576
    assert bytes_16bit(stack, 1) == 70_272
    assert attentions(stack)[0].scale == pytest.approx(0.135234, abs=5e-7)  # 1/sqrt(192), YaRN's 1.8739 on it


def test_o80_three_linear_layers_of_four_grow_by_nothing() -> None:
    stack = open_model("qwen3-next-80b-a3b").stack
    assert bytes_16bit(stack, 1000) == 1000 * 12 * 2 * 2 * (256 + 256)


def test_o82_and_o83_totals() -> None:
    assert count(weights(open_model("mixtral-8x7b").stack)) == 46_702_792_704
    assert count(weights(open_model("gpt2").stack)) == 124_439_808


def test_names_are_found_as_people_type_them() -> None:
    entry = find("meta-llama/Llama-2-70b-hf")
    assert entry is not None
    assert open_model("Llama-2-70B").stack == read_config(entry.config).stack
