"""The architect's sketch of a model, and the folded text of a model's layers."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import SpecError
from manyheads.spec import (
    AttentionSpec,
    Bidirectional,
    Block,
    Cross,
    Mlp,
    Moe,
    Norm,
    Rope,
    Stack,
    StackSpec,
    Window,
    count,
    from_json,
    layer_text,
    parse_stack,
    to_json,
    to_text,
    weights,
)
from manyheads.spec.fold import runs
from support.strategies import attention_specs, models

LLAMA_LAYER = AttentionSpec.gqa(4096, 32, 8, positions=Rope(128, 5e5))


def test_attention_alone() -> None:
    model = parse_stack("gqa(4096, 32/8x128, rope=5e5) x 32")
    assert model == StackSpec(stacks=(Stack("decoder", 4096, (Block((LLAMA_LAYER,)),) * 32),))
    assert count(weights(model)) == 32 * 41_943_040  # facts.md 4.6, Llama-3-8B


def test_a_whole_model_has_the_parameters_of_llama_3_8b() -> None:
    model = parse_stack("gqa(4096, 32/8x128, rope=5e5) + mlp(14336, gated) x 32; vocab=128256, untied, context=8192")
    block = Block((LLAMA_LAYER,), Mlp(14336, True), Norm(), ("pre_attention", "pre_mlp"))
    assert model == StackSpec(
        stacks=(Stack("decoder", 4096, (block,) * 32, final_norm=Norm()),),
        vocab_size=128256,
        head="untied",
        context=8192,
    )
    assert count(weights(model)) == 8_030_261_248


def test_mixture_and_tied_head() -> None:
    model = parse_stack("gqa(4096, 32/8x128, rope=1e6) + moe(8, 2, 14336) x 32; vocab=32000, untied")
    assert model.main.blocks[0].mlp == Moe(8, 2, 14336)
    assert count(weights(model)) == 46_702_792_704  # Mixtral-8x7B
    tied = parse_stack("gqa(4096, 32/8x128, rope=1e6) + moe(8, 2, 14336) x 32; vocab=32000, tied")
    assert count(weights(model)) - count(weights(tied)) == 32000 * 4096


def test_layers_in_turn_and_groups_in_a_row() -> None:
    model = parse_stack("(gqa(3584, 16/8x256, window=4096), gqa(3584, 16/8x256)) x 21")
    local, full = (Block((AttentionSpec.gqa(3584, 16, 8, head_dim=256, mask=m),)) for m in (Window(4096), _causal()))
    assert model.main.blocks == (local, full) * 21
    nested = parse_stack("((mha(8, 2) x 2, mha(8, 4)) x 3, mha(8, 1))x2, mha(8, 8) * 2")
    heads = [block.attentions[0].num_heads for block in nested.main.blocks]
    assert heads == ([2, 2, 4] * 3 + [1]) * 2 + [8, 8]


def _causal() -> object:
    return AttentionSpec.mha(8, 2).mask


def test_encoder_and_decoder_of_the_2017_paper() -> None:
    model = parse_stack(
        "encoder: mha(512, 8x64, bidirectional) + mlp(2048, bias) x 6;"
        "decoder: mha(512, 8x64) + mha(512, 8x64, cross=512) + mlp(2048, bias) x 6;"
        "vocab=37000, tied, norms=post, norm=layer(shift)"
    )
    assert model.encoder is not None
    assert model.encoder.blocks[0].norm_places == ("post_attention", "post_mlp")
    assert model.main.blocks[0].norm_places == ("post_attention", "post_cross", "post_mlp")
    assert model.main.blocks[0].cross == AttentionSpec.gqa(512, 8, 8, source=Cross(512), mask=Bidirectional())
    assert model.main.final_norm is None
    # 18 attention layers of 1,048,576, 12 MLPs of 2·512·2048 + 2048 + 512, 30 norms of 2·512, one table.
    assert count(weights(model)) == 18 * 1_048_576 + 12 * 2_099_712 + 30 * 1024 + 37000 * 512


def test_settings() -> None:
    model = parse_stack(
        "mha(12, 3, bias=qkvo) + mlp(48, bias) x 2; vocab=20, tied; norm=layer(1e-5, shift), context=16, positions=16,"
        "embedding_norm=rms, final_norm=none, token_types=2, head_bias, head_softcap=30, parallel"
    )
    assert (model.head, model.head_bias, model.head_softcap, model.token_types) == ("tied", True, 30.0, 2)
    stack = model.main
    assert (stack.position_rows, stack.embedding_norm, stack.final_norm) == (16, Norm(), None)
    assert stack.blocks[0].norm == Norm("layer", 1e-5, shift=True)
    assert stack.blocks[0].parallel
    gemma = parse_stack("mha(12, 3) + mlp(48, gated); norms=pre+out")
    assert gemma.main.blocks[0].norm_places == ("pre_attention", "out_attention", "pre_mlp", "out_mlp")
    assert parse_stack("mha(12, 3); norm=rms").main.blocks[0].norm_places == ("pre_attention",)
    assert parse_stack("mha(12, 3); vocab=5").head == "untied"
    assert parse_stack("mha(12, 3); vocab=5, untied=no").head == "none"
    assert parse_stack("mha(12, 3, bidirectional)").main.role == "encoder"
    assert parse_stack("mha(12, 3, buckets=32) x 2").main.relative_buckets == 32


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gqa(4096, 32/8x128) x 0", ["1 or more", "0"]),
        ("gqa(4096, 32/8x128) x", ["number of layers"]),
        ("gqa(4096, 32/8x128) x 10001", ["10001", "10000"]),
        ("((mha(8, 2) x 9999) x 9999) x 9999", ["99980001", "10000"]),
        ("gqa(4096, 32/8x128) y 3", ["character 21", "';'", "y"]),
        ("mlp(14336) x 3", ["attention", "d_model"]),
        ("mha(512, 8) + mlp(1) + mlp(2)", ["character 24", "one mlp"]),
        ("mha(512, 8) + mpl(1)", ["mpl", "did you mean mlp?"]),
        ("mha(512, 8) + mlp(1, gatd)", ["character 22", "gatd", "did you mean gated?"]),
        ("mha(512, 8) + mlp(1, wide=3)", ["wide", "width"]),
        ("mha(512, 8) + moe(2, 3, 4)", ["3", "2", "experts"]),
        ("mha(512, 8) + moe(2)", ["active"]),
        ("mha(512, 8), mha(256, 8)", ["512", "256"]),
        ("mha(512, 8), gqa(512, 8/3)", ["character 14", "8", "3"]),
        ("mha(512, 8) + mha(512, 8)", ["self-attention"]),
        ("mha(512, 8); vocb=3", ["vocb", "did you mean vocab?"]),
        ("mha(512, 8); vocab", ["vocab=..."]),
        ("mha(512, 8); vocab=3, vocab=4", ["vocab", "twice"]),
        ("mha(512, 8); vocab=3; vocab=4", ["vocab", "twice"]),
        ("mha(512, 8); tied", ["vocabulary", "0"]),
        ("mha(512, 8); vocab=4, tied, untied", ["tied or untied"]),
        ("mha(512, 8); vocab=-4", ["vocab_size", "-4"]),
        ("mha(512, 8); norms=before", ["before", "pre+out"]),
        ("middle: mha(512, 8)", ["middle", "encoder"]),
        ("encoder: mha(512, 8); decoder: mha(256, 8) + mha(256, 8, cross=128)", ["128", "512"]),
        ("mha(512, 8, borrowed=0)", ["layer 0", "before"]),
        ("(" * 50 + "mha(512, 8)" + ")" * 50, ["nested"]),
        ("(mha(512, 8)", ["')'", "the end"]),
        ("", ["empty"]),
    ],
)
def test_complaints_name_the_place(text: str, parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse_stack(text)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@given(st.text() | st.text(alphabet="mhaglp(),;=+:x 0189 vocab"))
def test_random_text_never_crashes(text: str) -> None:
    message = ""
    try:
        parse_stack(text)
    except SpecError as error:
        message = str(error)
    assert "\n" not in message


@given(
    st.lists(attention_specs(sources=("self",), d_model=12), min_size=1, max_size=3), st.integers(1, 6), st.booleans()
)
def test_what_is_read_survives_json(specs: list[AttentionSpec], times: int, mlp: bool) -> None:
    layers = ", ".join(to_text(spec) + (" + mlp(7, gated)" if mlp else "") for spec in specs)
    model = parse_stack(f"({layers}) x {times}; vocab=9, tied")
    assert [block.attentions[0] for block in model.main.blocks] == specs * times
    assert from_json(to_json(model)) == model


@pytest.mark.parametrize(
    "text",
    [
        "gqa(4096, 32/8x128) x 80",
        "(gqa(4096, 32/8x128, window=4096), gqa(4096, 32/8x128)) x 21",
        "(gqa(1152, 4/1x256, window=512) x 5, gqa(1152, 4/1x256)) x 4, gqa(1152, 4/1x256, window=512) x 2".replace(
            "gqa(1152, 4/1", "mqa(1152, 4"
        ),
        "mha(8, 2x4), mha(8, 4x2), mha(8, 1x8)",
        "mha(8, 2x4), mha(8, 4x2) x 7, mha(8, 1x8)",
        "mha(8, 2x4)",
        "encoder: mha(8, 2x4, bidirectional) x 6; decoder: mha(8, 2x4) + mha(8, 2x4, cross=8) x 6",
    ],
)
def test_layers_are_folded_by_the_shortest_period(text: str) -> None:
    assert layer_text(parse_stack(text)) == text


def test_layers_without_attention_are_named() -> None:
    model = parse_stack("(mha(8, 2x4), mlp(3) x 2, moe(2, 1, 3)) x 2")
    assert layer_text(model) == "(mha(8, 2x4), mlp x 2, moe) x 2"


@given(models())
def test_layer_text_reads_back_as_the_same_attention(model: StackSpec) -> None:
    text = layer_text(model)
    assert "\n" not in text
    if all(block.attentions for stack in model.stacks for block in stack.blocks):
        named = text if ":" in text else f"{model.main.role}: {text}"
        again = parse_stack(named)
        for stack, found in zip(model.stacks, again.stacks, strict=True):
            assert [block.attentions for block in found.blocks] == [block.attentions for block in stack.blocks]


@given(st.lists(st.integers(0, 3), max_size=60))
def test_runs_unfold_to_what_was_folded(items: list[int]) -> None:
    assert [item for period, times in runs(items) for item in period * times] == items
    assert all(times > 1 or period for period, times in runs(items))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(2, 9))
def test_a_repeated_row_is_one_run_with_the_shortest_period(period: list[int], times: int) -> None:
    row = period * times
    shortest = next(p for p in range(1, len(row)) if row[p:] + row[:p] == row)
    assert runs(row) == [(tuple(row[:shortest]), len(row) // shortest)]


def test_ten_thousand_different_layers_fold_in_no_time() -> None:
    started = time.process_time()
    assert runs(list(range(10_000))) == [(tuple(range(10_000)), 1)]
    runs([int(n**0.5) % 2 for n in range(10_000)])
    assert time.process_time() - started < 10
