"""What engines hold: public reports, published totals, and what vLLM's own planner says. No torch needed."""

from __future__ import annotations

import json

import pytest

from manyheads.cost.engines import ENGINES, engine_answers
from manyheads.errors import SpecError
from manyheads.report.jsonform import as_json
from manyheads.spec import (
    AttentionSpec,
    Bidirectional,
    Block,
    Borrowed,
    Causal,
    Chunk,
    Cross,
    NoPositions,
    Stack,
    StackSpec,
    State,
    Window,
)
from manyheads.spec.text import parse_stack

DYNAMIC, STATIC, EXPANDED, VLLM, VLLM_FULL, LLAMA_CPP = (row[0] for row in ENGINES)
MIB, GIB = 2**20, 2**30


def model(*layers: AttentionSpec, cross: AttentionSpec | None = None) -> StackSpec:
    blocks = tuple(Block((layer,) if cross is None else (layer, cross)) for layer in layers)
    return StackSpec((Stack("decoder", layers[0].d_model, blocks),))


def heads(kv: int, head_dim: int, window: int = 0, **more) -> AttentionSpec:
    mask = Window(window) if window else more.pop("mask", Causal())
    return AttentionSpec.gqa(2880, 16 * kv, kv, head_dim=head_dim, mask=mask, **more)


def delta_rule(decay: str = "per_head") -> AttentionSpec:
    """Qwen3-Next-80B's linear layer: 16 key heads, 32 value heads of 128, 4 taps."""
    state = State(
        16, 32, 32, 128, 128, 128, "identity",
        normalised=False, rule="gated_delta", decay=decay, beta="per_head", conv_width=4,
    )  # fmt: skip
    return AttentionSpec(d_model=2048, num_heads=16, kv=state, positions=NoPositions(), mask=Causal(), scale=1.0)


GPT_OSS_20B = model(*[heads(8, 64, 128), heads(8, 64)] * 12)
GPT_OSS_120B = model(*[heads(8, 64, 128), heads(8, 64)] * 18)
GEMMA_3_1B = model(*([heads(1, 256, 512)] * 5 + [heads(1, 256)]) * 4, *[heads(1, 256, 512)] * 2)
LLAMA_3_8B = model(*[heads(8, 128)] * 32)
DEEPSEEK_V3 = model(*[AttentionSpec.mla(7168, 128, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128)] * 61)
QWEN3_NEXT = model(*[delta_rule(), delta_rule(), delta_rule(), AttentionSpec.gqa(2048, 16, 2, head_dim=256)] * 12)


def answers(stack: StackSpec, context: int, **more):
    return {answer.engine: answer for answer in engine_answers(stack, context=context, **more)}


def test_deepseek_v3_latent_and_expanded() -> None:
    # case O79 and conformance section 6: 61 layers of 576 elements, or of 128 heads of 192 + 128
    held = answers(DEEPSEEK_V3, 256)
    assert {name: answer.bytes / 256 for name, answer in held.items()} == {
        DYNAMIC: 70_272, STATIC: 70_272, EXPANDED: 4_997_120, VLLM: 70_272, VLLM_FULL: 70_272, LLAMA_CPP: 70_272,
    }  # fmt: skip


def test_expansion_is_a_question_for_mla_only() -> None:
    answer = answers(LLAMA_3_8B, 256)[EXPANDED]
    assert not answer.applies
    assert answer.bytes == 0
    assert "MLA" in answer.reason


def test_windowed_layers_count_at_length_one() -> None:
    # case O75: half of it where the 18 windowed layers were left out
    held = answers(GPT_OSS_120B, 1)
    assert held[DYNAMIC].bytes == held[STATIC].bytes == 73_728
    assert held[DYNAMIC].details["windowed_bytes"] == 36_864


def test_gemma_3_1b_at_32768() -> None:
    # case O76, which says 832 MiB where windows are ignored; a token takes 1,024 B a layer
    held = answers(GEMMA_3_1B, 32_768)
    assert held[STATIC].bytes == 139 * MIB
    assert held[DYNAMIC].bytes == 832 * MIB
    # after a step a window's storage holds its past keys and the new one, its tensors the past keys alone
    assert held[DYNAMIC].details["storage_step_bytes"] == 139 * MIB + 4 * 1024
    assert held[DYNAMIC].details["logical_step_bytes"] == 139 * MIB + 4 * 1024 - 22 * 1024
    # a window of 512 gives back 32,256 tokens, a whole number of blocks: 6 groups of 4 places for 22 windowed layers
    assert held[VLLM].bytes == (4 * 32_768 + 24 * 512) * 1024
    assert held[VLLM_FULL].bytes == 832 * MIB
    # 512 + 512 tokens in each windowed layer
    assert held[LLAMA_CPP].bytes == (4 * 32_768 + 22 * 1024) * 1024


def test_a_window_ends_growth() -> None:
    # case O77: size at 1 times T is wrong
    windowed = model(*[heads(8, 64, 128)] * 2)
    sizes = [answers(windowed, tokens)[STATIC].bytes for tokens in (1, 127, 128, 129, 8192)]
    assert sizes == [count * 2 * 2048 for count in (1, 127, 128, 128, 128)]
    steps = [answers(windowed, tokens)[DYNAMIC].details["logical_step_bytes"] for tokens in (1, 125, 126, 127, 8192)]
    assert steps == [count * 2 * 2048 for count in (2, 126, 127, 127, 127)]


def test_block_formats_are_counted_in_blocks() -> None:
    # case O78: an element of q8_0 takes 34/32 bytes; in 16 bits the token takes 131,072
    held = answers(LLAMA_3_8B, 4096, kv_dtype="q8_0")
    assert held[LLAMA_CPP].bytes == 4096 * 69_632
    assert answers(LLAMA_3_8B, 4096, kv_dtype="f16")[LLAMA_CPP].bytes == 4096 * 131_072
    for name in (DYNAMIC, STATIC, VLLM):
        assert not held[name].applies
        assert "q8_0" in held[name].reason


def test_block_formats_must_divide_a_head() -> None:
    answer = answers(model(heads(2, 80)), 256, kv_dtype="q8_0")[LLAMA_CPP]
    assert not answer.applies
    assert "80" in answer.reason
    # 576 elements of MLA are 18 blocks of 34 bytes
    assert answers(DEEPSEEK_V3, 256, kv_dtype="q8_0")[LLAMA_CPP].bytes == 256 * 61 * 18 * 34


def test_keys_and_values_apart() -> None:
    """llama.cpp has a format for each (-ctk, -ctv); the others have one, and say so. 100,352 by hand: 32 x 8 x (136 + 256)."""
    held = answers(LLAMA_3_8B, 4096, kv_dtype="q8_0/f16")
    assert held[LLAMA_CPP].bytes == 4096 * 100_352
    for name in (DYNAMIC, STATIC, VLLM, VLLM_FULL):
        assert held[name].reason.endswith("keeps keys and values in one format, not in q8_0/fp16")
    assert answers(LLAMA_3_8B, 4096, kv_dtype="f16/q4_0")[LLAMA_CPP].bytes == 4096 * 32 * 8 * (256 + 72)
    # heads of 80 hold no whole block of 32, whichever of the two is packed
    for formats, packed in (("q8_0/f16", "q8_0"), ("f16/q4_0", "q4_0")):
        reason = answers(model(heads(2, 80)), 256, kv_dtype=formats)[LLAMA_CPP].reason
        assert reason == f"{packed} packs 32 elements, which do not divide a head of 80"
    assert "not fp8/fp16" in answers(LLAMA_3_8B, 256, kv_dtype="fp8/f16")[LLAMA_CPP].reason
    # MLA's one row is in the keys' format: 18 blocks of 34 bytes
    assert answers(DEEPSEEK_V3, 256, kv_dtype="q8_0/f16")[LLAMA_CPP].bytes == 256 * 61 * 18 * 34


def test_borrowing_and_linear_layers_do_not_grow() -> None:
    # case O80
    full = heads(2, 64)
    lender = answers(model(full), 1000)
    borrowing = answers(model(full, *[heads(2, 64, source=Borrowed(0))] * 3), 1000)
    assert {name: answer.bytes for name, answer in lender.items()} == {
        name: answer.bytes for name, answer in borrowing.items()
    }
    linear = model(*[delta_rule()] * 3)
    for name in (DYNAMIC, STATIC, VLLM, LLAMA_CPP):
        assert answers(linear, 1)[name].bytes == answers(linear, 10**6)[name].bytes > 0


def test_state_of_qwen3_next() -> None:
    # channels of the taps, and elements of the state
    taps, state = 8192, 32 * 128 * 128
    held = answers(QWEN3_NEXT, 1024)
    assert held[DYNAMIC].details["state_bytes"] == 36 * (4 * taps * 2 + state * 4)
    assert held[LLAMA_CPP].details["state_bytes"] == 36 * (3 * taps * 4 + state * 4)
    # 16 x ceil(1,097,728 / (16 x 2,048)): the block that vLLM logs for this model
    assert held[VLLM].details["block_tokens"] == 544
    # 36 + 12 layers in groups of 12: three of states, two blocks each, and one of ceil(1,024 / 544) blocks
    assert held[VLLM].bytes == 12 * 544 * 2048 * (3 * 2 + 2)
    assert not held[VLLM_FULL].applies
    # Kimi's states stay float32, its taps do not: 16 x ceil((3 x 8,192 x 2 + 32 x 128 x 128 x 4) / (16 x 2,048))
    kda = model(*[delta_rule("per_channel")] * 3, AttentionSpec.gqa(2048, 16, 2, head_dim=256))
    assert answers(kda, 1024)[VLLM].details["block_tokens"] == 16 * 66


def test_states_that_no_engine_was_read_for_are_refused() -> None:
    held = answers(model(AttentionSpec.linear(512, 8)), 100)
    assert [answer.applies for answer in held.values()] == [False] * len(ENGINES)
    assert "normalised sum" in held[DYNAMIC].reason


def test_gpt_oss_20b_beside_its_windows() -> None:
    # hf-mem#70: 8K x 32, ideal 6.09 GiB, every layer as if full 12.00 GiB
    held = answers(GPT_OSS_20B, 8192, batch=32)
    assert held[STATIC].bytes == 32 * 12 * 2048 * (8192 + 128) == 6_543_114_240
    assert held[VLLM_FULL].bytes == held[DYNAMIC].bytes == 12 * GIB
    assert held[VLLM].bytes == 6_543_114_240
    # 128 + 512 tokens, padded to 768
    assert held[LLAMA_CPP].bytes == 32 * 12 * 2048 * (8192 + 768)


@pytest.mark.parametrize(
    ("tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (128, 8), (129, 9), (143, 9), (144, 8), (145, 9), (8192, 8)]
)
def test_vllm_gives_back_blocks_that_left_the_window(tokens: int, blocks: int) -> None:
    """A window of 128 in blocks of 16: eight where both ends meet a block's, nine where they do not."""
    held = answers(model(heads(8, 64, 128)), tokens)[VLLM]
    assert held.details["blocks_per_sequence"] == blocks
    assert held.bytes == blocks * 16 * 2048


@pytest.mark.parametrize(
    ("layers", "groups", "block_bytes", "full_groups", "full_block_bytes"),
    [
        ([heads(8, 64, 128), heads(8, 64)] * 12, 2, 393_216, 1, 786_432),
        (
            [*([heads(16, 128, 1024)] * 5 + [heads(16, 128)]) * 10, *[heads(16, 128, 1024)] * 2],
            7, 1_310_720, 1, 8_126_464,
        ),
        ([heads(8, 64, 128)] * 12 + [heads(8, 64)] * 13, 2, 425_984, 1, 819_200),
        ([heads(8, 64, 128)] * 3 + [heads(8, 64)] * 2, 3, 65_536, 1, 163_840),
        (([heads(8, 256, 512)] * 5 + [heads(2, 512)]) * 5, 6, 655_360, 1, 3_604_480),
        (([heads(3, 64, 512)] * 3 + [heads(2, 64)]) * 2, 4, 24_576, 1, 90_112),
        (([heads(2, 64, 512)] * 3 + [heads(4, 64)]) * 2, 4, 32_768, 1, 81_920),
        ([heads(8, 128, 4096)] * 32, 1, 2_097_152, 1, 2_097_152),
        ([heads(8, 128)] * 4 + [heads(2, 64)] * 2, 1, 278_528, 1, 278_528),
        ([heads(8, 128, mask=Chunk(8192))] * 36 + [heads(8, 128)] * 12, 1, 3_145_728, 1, 3_145_728),
    ],
    ids=["gpt-oss", "gemma-3-27b", "12 + 13", "3 + 2", "wide global", "odd pages", "small windowed pages", "windows",
         "two sizes", "chunks"],
)  # fmt: skip
def test_groups_are_those_of_vllms_own_planner(layers, groups, block_bytes, full_groups, full_block_bytes) -> None:
    """Expected: get_kv_cache_groups and _get_kv_cache_bytes_per_block of vLLM 0.33.0, run on the same layers."""
    held = answers(model(*layers), 1000)
    assert (held[VLLM].details["groups"], held[VLLM].details["block_bytes"]) == (groups, block_bytes)
    assert (held[VLLM_FULL].details["groups"], held[VLLM_FULL].details["block_bytes"]) == (
        full_groups,
        full_block_bytes,
    )


def test_two_windows_cannot_be_one_group() -> None:
    held = answers(model(heads(8, 64, 128), heads(8, 64, 256), heads(8, 64)), 1000)
    assert held[VLLM].details["groups"] == 3
    assert not held[VLLM_FULL].applies
    assert "128, 256" in held[VLLM_FULL].reason


def test_encoder_decoder() -> None:
    # Whisper large: 2 x 32 layers x 20 heads x 64 x 2 B, a generated token and a source token alike
    cross = AttentionSpec.gqa(1280, 20, 20, source=Cross(1280), mask=Bidirectional())
    whisper = model(*[AttentionSpec.gqa(1280, 20, 20)] * 32, cross=cross)
    held = answers(whisper, 448, source_tokens=1500, batch=2)
    assert held[DYNAMIC].bytes == held[STATIC].bytes == 2 * 163_840 * (448 + 1500)
    assert held[DYNAMIC].details["cross_bytes"] == 2 * 163_840 * 1500
    # groups and block as vLLM's planner has them: 32 + 32 layers of 81,920 B pages, 28 and 94 blocks
    assert held[VLLM].bytes == 2 * 2_621_440 * (28 + 94)
    # llama.cpp projects the encoder's output in every step and keeps only that, in float32
    assert held[LLAMA_CPP].bytes == 2 * (163_840 * 512 + 1500 * 1280 * 4)


def test_an_encoder_keeps_nothing() -> None:
    bert = StackSpec((Stack("encoder", 768, (Block((AttentionSpec.gqa(768, 12, 12, mask=Bidirectional()),)),)),))
    assert {answer.reason for answer in engine_answers(bert, context=512)} == {"an encoder keeps no cache"}


def test_llama_cpp_pads_cells_and_ignores_the_window_of_mistral() -> None:
    held = [answers(LLAMA_3_8B, tokens)[LLAMA_CPP].details["cells"] for tokens in (1, 256, 257, 4096)]
    assert held == [256, 256, 512, 4096]
    mistral = model(*[heads(8, 128, 4096)] * 32)
    assert answers(mistral, 32_768)[LLAMA_CPP].bytes == 32_768 * 131_072
    assert answers(mistral, 32_768)[STATIC].bytes == 4096 * 131_072


TINY_DELTA = "linear(64, 2x32, value_heads=4, map=identity, normalised=no, rule=gated_delta, decay=per_head, beta=per_head, conv=4)"


@pytest.mark.parametrize(
    ("sketch", "context", "batch", "kv_dtype", "logged"),
    [
        ("gqa(576, 9/3x64) x 30", 1000, 1, "f16", ["22.50"]),
        ("gqa(576, 9/3x64) x 30", 1000, 1, "q8_0", ["11.95"]),
        ("gqa(576, 9/3x64) x 30", 1000, 3, "f16", ["67.50"]),
        ("gqa(64, 4/2x64, window=128) x 6, gqa(64, 4/2x64)", 2000, 1, "f16", ["1.00", "2.25"]),
        ("gqa(64, 4/2x64, window=128) x 6, gqa(64, 4/2x64)", 2000, 1, "q8_0", ["0.53", "1.20"]),
        ("gqa(64, 4/2x64, window=128) x 6, gqa(64, 4/2x64)", 300, 1, "f16", ["0.25", "1.50"]),
        ("gqa(64, 4/2x64, window=128) x 6, gqa(64, 4/2x64)", 2000, 4, "f16", ["4.00", "9.00"]),
        ("mla(64, 4x32+32, rank=64) x 3", 1000, 1, "f16", ["0.56"]),
        ("mla(64, 4x32+32, rank=64) x 3", 1000, 1, "q8_0", ["0.30"]),
        ("gqa(64, 4/2x64, window=128) x 2", 2000, 1, "f16", ["2.00"]),
        (f"{TINY_DELTA} x 3, gqa(64, 4/2x64)", 1000, 1, "f16", ["0.50", "0.06"]),
        (f"{TINY_DELTA} x 3, gqa(64, 4/2x64)", 1000, 2, "f32", ["2.00", "0.11"]),
    ],
)
def test_sizes_are_those_that_llama_cpp_logs(sketch, context, batch, kv_dtype, logged) -> None:
    """Expected: MiB that a build of 0c1e57098 logged for SmolLM2 and for random GGUFs of gemma3, deepseek2, llama with a
    window and qwen3next, with -c context x batch, -np batch and that cache type; a buffer each kind of layer."""
    details = answers(parse_stack(sketch), context, batch=batch, kv_dtype=kv_dtype)[LLAMA_CPP].details
    buffers = [details[part] for part in ("full_bytes", "windowed_bytes", "state_bytes") if details[part]]
    assert [f"{size / MIB:.2f}" for size in buffers] == logged


def test_a_window_of_one_keeps_all_in_a_dynamic_cache() -> None:
    """keys[:, :, -1 + 1 :] is the whole of it."""
    held = answers(model(heads(1, 8, 1)), 100)
    assert held[DYNAMIC].details["logical_step_bytes"] == 101 * 32
    assert held[STATIC].bytes == 32


def test_sizes_are_exact_and_at_once_however_long() -> None:
    for answer in engine_answers(GPT_OSS_120B, context=10**7, batch=10**4):
        assert type(answer.bytes) is int
        assert {type(part) for part in answer.details.values()} <= {int}
    assert answers(LLAMA_3_8B, 10**12)[DYNAMIC].bytes == 131_072 * 10**12


def test_answers_say_where_they_come_from_and_are_json() -> None:
    for answer, row in zip(engine_answers(LLAMA_3_8B, context=1), ENGINES, strict=True):
        assert (answer.engine, answer.version) == row[:2]
        assert answer.provenance.startswith(("measured", "modelled from source"))
        assert answer.rule.endswith(".")
        assert json.loads(json.dumps(as_json(answer)))["bytes"] == answer.bytes
        assert isinstance(hash(answer), int)


@pytest.mark.parametrize(
    ("request_", "words"),
    [({"context": 0}, "context"), ({"context": 1, "batch": 0}, "batch"), ({"context": 1, "kv_dtype": "q9"}, "q9"),
     ({"context": 1, "source_tokens": -1}, "source_tokens")],
)  # fmt: skip
def test_bad_requests_are_named(request_, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        engine_answers(LLAMA_3_8B, **request_)
