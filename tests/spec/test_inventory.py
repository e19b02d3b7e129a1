"""The inventory: published counts, closed forms, names and axes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import SpecError
from manyheads.spec import (
    AttentionSpec,
    Block,
    Borrowed,
    Heads,
    Latent,
    Mlp,
    Moe,
    Norm,
    OtherWeight,
    QKNorm,
    RelativeBuckets,
    Stack,
    StackSpec,
    State,
    count,
    weights,
)
from manyheads.spec.axes import AXES
from support.strategies import attention_specs, blocks, models, stacks

PARTS = ("attention", "mlp", "norm", "embedding", "head", "other")
gqa = AttentionSpec.gqa


def mla(d_model: int, num_heads: int, q_rank: int) -> AttentionSpec:
    spec = AttentionSpec.mla(d_model, num_heads, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, q_rank=q_rank)
    assert isinstance(spec.kv, Latent)
    return replace(spec, kv=replace(spec.kv, norm=None))


@pytest.mark.parametrize(
    ("spec", "parameters"),
    [
        (gqa(512, 8, 8), 1_048_576),  # Transformer base
        (gqa(768, 12, 12, bias="qkvo"), 2_362_368),  # GPT-2 small, BERT base
        (gqa(1280, 20, 20, bias="qvo"), 6_557_440),  # Whisper large: no bias on keys
        (gqa(4096, 32, 32), 67_108_864),  # Llama-2-7B
        (gqa(4096, 32, 8), 41_943_040),  # Llama-3-8B, Mistral-7B
        (gqa(8192, 64, 8), 150_994_944),  # Llama-2-70B
        (gqa(16384, 128, 8), 570_425_344),  # Llama-3.1-405B
        (gqa(3584, 28, 4, bias="qkv"), 29_364_736),  # Qwen2-7B
        (gqa(2048, 8, 1, head_dim=256), 9_437_184),  # Gemma-2B
        (gqa(3072, 16, 16, head_dim=256), 50_331_648),  # Gemma-7B
        (gqa(3584, 16, 8, head_dim=256), 44_040_192),  # Gemma-2-9B
        (gqa(4608, 32, 16, head_dim=128), 56_623_104),  # Gemma-2-27B
        (gqa(5120, 40, 8), 62_914_560),  # OLMo-2-32B without its QK-norm
        (gqa(1024, 128, 128, head_dim=128), 67_108_864),  # T5-11B
        (mla(2048, 16, 0), 13_762_560),  # DeepSeek-V2-Lite
        (mla(5120, 128, 1536), 149_225_472),  # DeepSeek-V2
        (mla(7168, 128, 1536), 187_105_280),  # DeepSeek-V3
    ],
)
def test_published_weights_of_one_layer(spec: AttentionSpec, parameters: int) -> None:
    assert count(weights(spec)) == parameters  # facts.md 4.6


def test_norms_inside_attention() -> None:
    full = gqa(5120, 40, 8, qk_norm=QKNorm(scope="full"))
    assert count(weights(full)) == 62_914_560 + 40 * 128 + 8 * 128  # (H + K)·q, OLMo-2
    shared = gqa(4096, 32, 8, qk_norm=QKNorm())
    assert count(weights(shared)) == 41_943_040 + 2 * 128  # 2q, Qwen3
    v3 = AttentionSpec.mla(7168, 128, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, q_rank=1536)
    assert count(weights(v3)) == 187_105_280 + 1536 + 512


def test_a_head_of_the_2017_paper_has_98304_projection_weights() -> None:
    found = {w.name: w for w in weights(gqa(512, 8, 8))}
    assert sum(found[name].elements // 8 for name in ("q", "k", "v")) == 98_304


def llama_2_70b() -> StackSpec:
    block = Block((gqa(8192, 64, 8),), Mlp(28672, True), Norm(), ("pre_attention", "pre_mlp"))
    stack = Stack("decoder", 8192, (block,) * 80, final_norm=Norm())
    return StackSpec((stack,), vocab_size=32000, head="untied")


def mixtral() -> StackSpec:
    block = Block((gqa(4096, 32, 8),), Moe(8, 2, 14336), Norm(), ("pre_attention", "pre_mlp"))
    stack = Stack("decoder", 4096, (block,) * 32, final_norm=Norm())
    return StackSpec((stack,), vocab_size=32000, head="untied")


def gpt2() -> StackSpec:
    norm = Norm("layer", 1e-5, shift=True)
    block = Block((gqa(768, 12, 12, bias="qkvo"),), Mlp(3072, bias=True), norm, ("pre_attention", "pre_mlp"))
    stack = Stack("decoder", 768, (block,) * 12, position_rows=1024, final_norm=norm)
    return StackSpec((stack,), vocab_size=50257, head="tied")


def bert() -> StackSpec:
    norm = Norm("layer", 1e-12, shift=True)
    block = Block((gqa(768, 12, 12, bias="qkvo"),), Mlp(3072, bias=True), norm, ("post_attention", "post_mlp"))
    stack = Stack("encoder", 768, (block,) * 12, position_rows=512, embedding_norm=norm)
    pooler = (OtherWeight("pooler.weight", (768, 768)), OtherWeight("pooler.bias", (768,)))
    return StackSpec((stack,), vocab_size=30522, token_types=2, other=pooler)


def deepseek_v3() -> StackSpec:
    attention = AttentionSpec.mla(7168, 128, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, q_rank=1536)
    places = ("pre_attention", "pre_mlp")
    dense = Block((attention,), Mlp(18432, True), Norm(), places)
    sparse = Block((attention,), Moe(256, 8, 2048, 2048, router_bias="buffer"), Norm(), places)
    stack = Stack("decoder", 7168, (dense,) * 3 + (sparse,) * 58, final_norm=Norm())
    return StackSpec((stack,), vocab_size=129280, head="untied")


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        (llama_2_70b(), 68_976_648_192),
        (mixtral(), 46_702_792_704),
        (gpt2(), 124_439_808),
        (bert(), 109_482_240),
        (deepseek_v3(), 671_026_404_352),
    ],
)
def test_published_parameters_of_whole_models(model: StackSpec, parameters: int) -> None:
    assert count(weights(model)) == parameters


def test_buffers_are_stored_but_no_parameters() -> None:
    items = weights(deepseek_v3())
    assert count(items, buffers=True) - count(items) == 14_848  # 58 layers of 256 corrections
    assert [w.shape for w in items if w.buffer] == [(256,)] * 58


def test_parts_of_llama_2_70b() -> None:
    items = weights(llama_2_70b())
    assert count(items, "attention") == 80 * 150_994_944
    assert count(items, "mlp") == 80 * 3 * 8192 * 28672
    assert count(items, "norm") == 161 * 8192
    assert count(items, "embedding") == count(items, "head") == 32000 * 8192


@given(attention_specs(kinds=("heads",), sources=("self", "cross")))
def test_heads_in_closed_form(spec: AttentionSpec) -> None:
    """facts.md 4.2: d·H·q + e·K·q + e·K·v + H·v·d, biases H·q, K·q, K·v, d, and what the layer adds."""
    kv, d, e, h = spec.kv, spec.d_model, spec.d_source, spec.num_heads
    assert isinstance(kv, Heads)
    k, q, v = kv.num_kv_heads, kv.head_dim, kv.v_head_dim
    expected = d * h * q + e * k * q + e * k * v + h * v * d
    expected += spec.bias.q * h * q + spec.bias.k * k * q + spec.bias.v * k * v + spec.bias.o * d
    expected += spec.sinks * h + spec.output_gate * d * h * v
    if spec.qk_norm is not None and spec.qk_norm.norm.gain != "none":
        wide = 2 * q if spec.qk_norm.scope == "head" else (h + k) * q
        expected += wide * (2 if spec.qk_norm.norm.shift else 1)
    assert count(weights(spec)) == expected


@given(attention_specs(kinds=("latent",), sources=("self",)))
def test_latent_in_closed_form(spec: AttentionSpec) -> None:
    """facts.md 4.3, with m = 0 for no query latent."""
    kv, d, h = spec.kv, spec.d_model, spec.num_heads
    assert isinstance(kv, Latent)
    n, r, v, m, c = kv.nope_dim, kv.rope_dim, kv.v_head_dim, kv.q_rank, kv.rank
    expected = (d * m + m * h * (n + r) if m else d * h * (n + r)) + d * (c + r) + c * h * (n + v) + h * v * d
    expected += spec.bias.q * (m or h * (n + r)) + spec.bias.k * (c + r) + spec.bias.o * d
    expected += spec.sinks * h + spec.output_gate * d * h * v
    if kv.norm is not None and kv.norm.gain != "none":
        expected += (m + c) * (2 if kv.norm.shift else 1)
    assert count(weights(spec)) == expected


@given(attention_specs(kinds=("state",)))
def test_state_in_closed_form(spec: AttentionSpec) -> None:
    """facts.md 4.4: projections, a learned feature map, short convolutions, gates, output norm."""
    kv, d, h = spec.kv, spec.d_model, spec.num_heads
    assert isinstance(kv, State)
    keys, values, states = kv.num_key_heads, kv.num_value_heads, kv.num_state_heads
    q, f, v, out = kv.head_dim, kv.feature_dim, kv.v_head_dim, max(h, states)
    expected = d * (h * q + keys * q + values * v) + out * v * d + spec.output_gate * out * v * d
    expected += spec.bias.q * h * q + spec.bias.k * keys * q + spec.bias.v * values * v + spec.bias.o * d
    expected += (h + keys) * q * f if kv.feature_map == "learned" else 0
    expected += kv.conv_width * (h * q + keys * q + values * v)
    channels = {"none": 0, "per_head": 1, "per_channel": f}[kv.decay]
    expected += states * channels * (d + 2)
    expected += {"none": 0, "scalar": 1, "per_head": states}[kv.beta] * d
    if kv.norm is not None and kv.norm.gain != "none":
        expected += v * (2 if kv.norm.shift else 1)
    assert count(weights(spec)) == expected


@given(attention_specs() | blocks(d_model=5) | stacks() | models())
def test_parts_sum_up_and_axes_are_letters(spec: AttentionSpec | Block | Stack | StackSpec) -> None:
    items = weights(spec, 5) if isinstance(spec, Block) else weights(spec)
    assert sum(count(items, part) for part in PARTS) == count(items)
    assert sum(count(items, part, buffers=True) for part in PARTS) == sum(w.elements for w in items)
    for weight in items:
        letters = weight.axes.split()
        assert len(letters) == len(weight.shape)
        assert set(letters) <= set(AXES)
        assert weight.part in PARTS
        assert all(length > 0 for length in weight.shape)


@given(attention_specs() | blocks(d_model=5))
def test_names_are_unique_and_one_letter_stands_for_one_length(spec: AttentionSpec | Block) -> None:
    items = weights(spec, 5)
    names = [w.name for w in items]
    assert len(set(names)) == len(names)
    for weight in items:
        assert tuple(weight.sizes[letter] for letter in weight.axes.split()) == weight.shape
    if isinstance(spec, AttentionSpec):
        lengths: dict[str, int] = {}
        for weight in items:
            assert {**lengths, **weight.sizes} == {**weight.sizes, **lengths}
            lengths |= weight.sizes


@given(stacks())
def test_a_stack_is_the_sum_of_its_blocks(stack: Stack) -> None:
    plain = Stack(stack.role, stack.d_model, stack.blocks)
    groups = sum(times * count(weights(block, stack.d_model)) for block, times in plain.groups)
    assert count(weights(plain)) == groups
    assert sum(times for _, times in plain.groups) == len(stack.blocks)
    tables = (stack.position_rows * stack.d_model, "embedding"), (count(weights(plain), "mlp"), "mlp")
    for expected, part in tables:
        assert count(weights(stack), part) == expected


def test_names_are_canonical() -> None:
    assert [w.name for w in weights(gqa(8, 2, 1, bias="qo"))] == ["q", "q.bias", "k", "v", "o", "o.bias"]
    small = replace(gpt2(), stacks=(replace(gpt2().main, blocks=gpt2().main.blocks[:1]),))
    names = [w.name for w in weights(small)]
    assert names[:2] == ["tokens", "decoder.positions"]
    assert "decoder.layers.0.self.q.bias" in names
    assert "decoder.layers.0.pre_mlp_norm.weight" in names
    assert names[-2:] == ["decoder.final_norm.weight", "decoder.final_norm.bias"]


def test_relative_buckets_are_one_table_of_the_stack() -> None:
    layer = gqa(1024, 128, 128, head_dim=128, positions=RelativeBuckets(32, 128, False))
    stack = Stack("decoder", 1024, (Block((layer,)),) * 24, relative_buckets=32)
    table = [w for w in weights(stack) if w.name == "relative_bias"]
    assert [w.shape for w in table] == [(32, 128)]


def test_a_borrowing_layer_has_no_key_and_value_weights() -> None:
    spec = replace(gqa(64, 8, 2, bias="qkvo", qk_norm=QKNorm()), source=Borrowed(0))
    assert [w.name for w in weights(spec)] == ["q", "q.bias", "q_norm.weight", "o", "o.bias"]


@pytest.mark.parametrize("part", [Mlp(3), Moe(2, 1, 3), Block((), Mlp(3))])
def test_a_part_without_attention_needs_its_width(part: Mlp | Moe | Block) -> None:
    with pytest.raises(SpecError, match="d_model must lie in"):
        weights(part)
    assert count(weights(part, 5)) > 0


@given(st.sampled_from([Mlp(7), Mlp(7, True), Mlp(7, True, True), Mlp(7, bias=True)]), st.integers(1, 9))
def test_mlp_in_closed_form(mlp: Mlp, d: int) -> None:
    expected = (3 if mlp.gated else 2) * d * 7 + mlp.bias * ((2 if mlp.gated else 1) * 7 + d)
    assert count(weights(mlp, d)) == expected


def test_mixture_in_closed_form() -> None:
    moe = Moe(5, 2, 7, 11, bias=True, router_bias="weight", shared_gate=True)
    d = 3
    experts = 5 * (3 * d * 7 + 2 * 7 + d)
    assert count(weights(moe, d)) == experts + 5 * d + 5 + 3 * d * 11 + d
