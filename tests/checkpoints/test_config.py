"""Configurations to specs: every published spelling, every contradiction, and what is refused by its name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from manyheads.checkpoints import ModelConfig, read_config
from manyheads.errors import CheckpointError
from manyheads.spec import (
    AttentionSpec,
    Borrowed,
    Causal,
    Chunk,
    DynamicScaling,
    Heads,
    Latent,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mlp,
    Moe,
    NoPositions,
    NoScaling,
    Rope,
    State,
    Window,
    YarnScaling,
    weights,
)

CONFIGS = Path(__file__).parent / "fixtures" / "configs"
PLAIN = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 101, "max_position_embeddings": 512,
}  # fmt: skip


def load(name: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text())
    return config


def read(name: str, **changes: Any) -> ModelConfig:
    return read_config({**load(name), **changes}, source=name)


def attentions(found: ModelConfig) -> list[AttentionSpec]:
    return [block.attention for block in found.stack.main.blocks if block.attention is not None]


def windows(found: ModelConfig) -> list[int]:
    return [a.mask.keys if isinstance(a.mask, Window) else 0 for a in attentions(found)]


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_every_published_spelling_is_understood_or_refused_by_name(path: Path) -> None:
    if path.stem == "unknown-window":
        with pytest.raises(CheckpointError, match="sliding_window = 32 is not understood"):
            read_config(load(path.stem))
        return
    found = read_config(load(path.stem), source=path.stem)
    assert found.stack.layers == {"gemma3-published-4b": 34, "llava-published-7b": 32}.get(
        path.stem, 13 if path.stem.startswith("gemma3") else 6
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gemma3-pattern", [32, 32, 32, 32, 32, 0] * 2 + [32]),
        ("gemma3-layer-types", [32, 32, 32, 32, 32, 0] * 2 + [32]),
        ("gemma2-alternate", [32, 0] * 3),
        ("gpt-oss-layer-types", [32, 0] * 3),
        ("qwen2-upper-window", [0, 0, 0, 0, 32, 32]),
        ("qwen2-switched-off", [0] * 6),
        ("qwen2-null-switch-off", [0] * 6),
        ("mistral-window", [32] * 6),
        ("mistral-window-null", [0] * 6),  # case O57: null and 0 are no window, never an empty one
        ("mistral-window-zero", [0] * 6),
        ("mistral-window-absent", [4096] * 6),
        ("cohere2-pattern", [32, 32, 0] * 2),
        ("unknown-letters", [32, 32, 32, 0, 32, 32]),
    ],
)
def test_windows(name: str, expected: list[int]) -> None:
    assert windows(read(name)) == expected


def test_both_spellings_of_gemma3_are_one_model() -> None:
    pattern, listed = read("gemma3-pattern"), read("gemma3-layer-types")
    assert pattern.stack == listed.stack
    full, sliding = attentions(pattern)[5].positions, attentions(pattern)[0].positions
    assert full == Rope(16, 1e6, "halves", LinearScaling(8.0))
    assert sliding == Rope(16, 1e4, "halves", NoScaling())


def test_published_gemma3_4b_holds_only_what_differs_from_the_class() -> None:
    found = read("gemma3-published-4b")
    attention = attentions(found)[0]
    assert (attention.num_heads, attention.kv) == (8, Heads(4, 256, 256))
    assert windows(found).count(0) == 5
    assert found.stack.vocab_size == 262208
    assert found.stack.head == "tied"
    assert found.weight_dtype == "bf16"
    assert any("vision_config is left out" in note for note in found.notes)


def test_llava_text_config_takes_llamas_own_sizes() -> None:
    found = read("llava-published-7b")
    assert attentions(found)[0].kv == Heads(32, 128, 128)
    assert found.stack.main.d_model == 4096
    assert found.stack.vocab_size == 32064


def test_sizes_are_not_taken_over_at_the_top_level() -> None:
    with pytest.raises(CheckpointError, match="no hidden_size; expected hidden_size or n_embd or d_model"):
        read_config({"model_type": "llama", "vocab_size": 101})


def test_chunks_and_layers_without_rotation() -> None:
    masks = [a.mask for a in attentions(read("unknown-chunks"))]
    assert masks == [Chunk(64), Chunk(64), Causal()] * 2
    positions = [type(a.positions) for a in attentions(read("unknown-no-rope"))]
    assert positions == [Rope, Rope, NoPositions] * 2


def test_full_layers_of_command_r7b_do_not_rotate() -> None:
    positions = [type(a.positions) for a in attentions(read("cohere2-pattern"))]
    assert positions == [Rope, Rope, NoPositions] * 2


def test_shared_keys_and_values_are_borrowed_from_the_last_layer_of_their_kind() -> None:
    """Case O80: layers that borrow store nothing. transformers' Gemma 3n shares per kind of layer."""
    found = attentions(read("unknown-shared-kv"))
    assert found[4].source == Borrowed(1)
    assert found[5].source == Borrowed(3)
    assert not any(
        w.name.startswith(("decoder.layers.4.self.k", "decoder.layers.5.self.v"))
        for w in weights(read("unknown-shared-kv").stack)
    )


def test_three_to_one_linear_layers() -> None:
    interval, listed = read("qwen3-next-interval"), read("qwen3-next-layer-types")
    assert interval.stack == listed.stack
    kinds = [type(a.kv) for a in attentions(interval)]
    assert kinds == [State, State, Heads] * 2
    state = attentions(interval)[0].kv
    assert isinstance(state, State)
    assert (state.num_key_heads, state.num_value_heads, state.num_state_heads) == (2, 4, 4)
    assert (state.head_dim, state.v_head_dim, state.rule, state.conv_width) == (12, 20, "gated_delta", 4)
    assert attentions(interval)[2].positions == Rope(4, 10000.0)


def test_latent_attention_by_its_fields() -> None:
    found = read("unknown-latent")
    kv = attentions(found)[0].kv
    assert isinstance(kv, Latent)
    assert (kv.rank, kv.q_rank, kv.nope_dim, kv.rope_dim, kv.v_head_dim) == (32, 48, 24, 8, 20)
    assert attentions(found)[0].scale == pytest.approx(32**-0.5)  # case O81: nope + rope, not rank
    moe = found.stack.main.blocks[1].mlp
    assert isinstance(moe, Moe)
    assert moe.router_bias == "buffer"
    assert isinstance(found.stack.main.blocks[0].mlp, Mlp)


@pytest.mark.parametrize("name", ["deepseek-v3-no-query-rank", "deepseek-v2-query-rank-null"])
def test_query_rank_zero_and_null_mean_none(name: str) -> None:
    kv = attentions(read(name))[0].kv
    assert isinstance(kv, Latent)
    assert kv.q_rank == 0


@pytest.mark.parametrize(("mscale", "scale"), [(0.707, 0.114721), (1.0, 0.135234)])
def test_o96_yarn_scales_the_softmax_of_latent_attention(mscale: float, scale: float) -> None:
    config = load("deepseek-v2-query-rank-null")
    config.update(qk_nope_head_dim=128, qk_rope_head_dim=64)
    config["rope_scaling"] = {"type": "yarn", "factor": 40, "mscale": mscale, "mscale_all_dim": mscale,
                              "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1}  # fmt: skip
    attention = attentions(read_config(config))[0]
    assert attention.scale == pytest.approx(scale, abs=5e-7)
    assert isinstance(attention.positions, Rope)
    assert attention.positions.scaling == YarnScaling(40.0, 4096, mscale=mscale, mscale_all_dim=mscale)


def test_yarn_without_mscale_all_dim_leaves_the_scale() -> None:
    config = load("deepseek-v2-query-rank-null")
    config["rope_scaling"] = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}
    assert attentions(read_config(config))[0].scale == pytest.approx(32**-0.5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama3-rope-scaling", Rope(16, 5e5, "halves", Llama3Scaling(8.0, 1.0, 4.0, 8192))),
        ("llama3-rope-parameters", Rope(16, 5e5, "halves", Llama3Scaling(8.0, 1.0, 4.0, 8192))),
        ("llama-old-linear", Rope(16, 1e4, "halves", LinearScaling(4.0))),
        ("llama-dynamic", Rope(16, 1e4, "halves", DynamicScaling(2.0, 512))),
        ("phi3-longrope", Rope(16, 1e4, "halves", LongRopeScaling(128, (1.0,) * 8, (2.5,) * 8))),
        ("phi3-su", Rope(16, 1e4, "halves", LongRopeScaling(128, (1.0,) * 8, (2.5,) * 8))),
        ("phi-partial", Rope(8, 1e4)),
        ("neox-old-names", Rope(4, 1e4)),
        ("gpt-oss-layer-types", Rope(16, 150000.0, "halves", YarnScaling(32.0, 4096, truncate=False))),
    ],
)
def test_rotary_positions(name: str, expected: Rope) -> None:
    assert attentions(read(name))[0].positions == expected


def test_o52_scale_comes_from_query_pre_attn_scalar() -> None:
    attention = attentions(read("gemma2-alternate"))[0]
    assert attention.scale == pytest.approx(1 / 12)
    assert attention.softcap == 50.0
    assert read("gemma2-alternate").stack.head_softcap == 30.0


def test_old_names() -> None:
    falcon, bloom, neox = read("falcon-old-names"), read("bloom-old-names"), read("neox-old-names")
    assert attentions(falcon)[0].scheme == "mqa"
    assert attentions(read("falcon-grouped"))[0].kv == Heads(2, 16, 16)
    assert attentions(bloom)[0].kv == Heads(4, 16, 16)
    assert neox.stack.main.blocks[0].parallel


def test_t5_is_not_scaled_and_keeps_its_own_head() -> None:
    found = read("t5-v1.1-published")
    assert {a.scale for stack in found.stack.stacks for block in stack.blocks for a in block.attentions} == {1.0}
    assert found.stack.head == "untied"
    assert found.stack.main.blocks[0].mlp == Mlp(96, gated=True)


def test_o39_and_o41_head_dim_is_read_never_derived() -> None:
    """4,096 wide, 24 heads of 128: the query projection is 3,072 x 4,096, and 4,096 / 24 is never asked."""
    config = {
        **PLAIN,
        "model_type": "llama",
        "hidden_size": 4096,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }
    found = read_config(config)
    query = next(w for w in weights(found.stack) if w.name == "decoder.layers.0.self.q")
    assert query.shape == (24, 128, 4096)
    odd = read_config(
        {
            **PLAIN,
            "model_type": "gemma",
            "hidden_size": 1023,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "head_dim": 26,
        }
    )
    assert attentions(odd)[0].num_heads * attentions(odd)[0].head_dim == 208


def test_o42_and_o43_heads_that_do_not_divide_are_named_with_both_numbers() -> None:
    with pytest.raises(CheckpointError, match=r"512.*6"):
        read_config({**PLAIN, "model_type": "llama", "hidden_size": 512, "num_attention_heads": 6})
    with pytest.raises(CheckpointError, match=r"10.*3"):
        read_config({"model_type": "gpt2", "n_embd": 10, "n_head": 3, "n_layer": 1, "vocab_size": 7})


def test_o23_key_value_heads_must_divide_heads() -> None:
    with pytest.raises(CheckpointError, match="num_attention_heads 5 is not a multiple of num_key_value_heads 2"):
        read_config({**PLAIN, "model_type": "llama", "hidden_size": 60, "num_attention_heads": 5})


def test_o94_a_latent_config_may_say_anything_of_key_value_heads() -> None:
    assert attentions(read("unknown-latent", num_key_value_heads=3))[0].scheme == "mla"


REFUSED = [
    ("sliding_window", 4096), ("kv_lora_rank", 512), ("ssm_state_size", 16), ("mamba_d_state", 16),
    ("layer_types", ["mamba", "full_attention"] * 3), ("layer_types", ["compressed_sparse_attention"] * 6),
    ("layer_types", ["linear_attention"] * 6), ("block_types", ["recurrent", "attention"]), ("index_topk", 2048),
    ("attention_window", 128), ("state_size", 64), ("conv_kernel", 4), ("hybrid_override_pattern", "M-M*"),
    ("attn_layer_period", 8), ("sparse_block_size", 64), ("compress_ratio", 4), ("linear_num_heads", 4),
    ("kv_share_every", 2), ("cross_layer_kv", True), ("attention_sink_size", 4), ("attn_temperature_tuning", True),
    ("is_encoder_decoder", True), ("use_alibi", True), ("rope_scaling", {"rope_type": "spiral", "factor": 2.0}),
    ("lightning_layers", [1, 2]), ("local_attention", 128), ("moba_chunk", 512),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), REFUSED, ids=[f"{key}-{index}" for index, (key, _) in enumerate(REFUSED)])
def test_what_changes_attention_and_is_not_understood_is_refused_by_name(key: str, value: Any) -> None:
    config = {**PLAIN, "model_type": "my_model", key: value}
    with pytest.raises(CheckpointError) as caught:
        read_config(config, source="x/config.json")
    message = str(caught.value)
    assert message.startswith("x/config.json: ")
    assert key in message
    assert 'assume="full"' in message
    assert "\n" not in message
    assumed = read_config(config, assume="full")
    assert [type(a.mask) for a in attentions(assumed)] == [Causal] * 6
    assert {a.kv for a in attentions(assumed)} == {Heads(2, 16, 16)}
    assert any(key in note and "full attention is assumed" in note for note in assumed.notes)


@pytest.mark.parametrize(
    "key", ["sliding_window", "kv_lora_rank", "ssm_state_size", "index_topk", "layer_types", "use_alibi"]
)
@pytest.mark.parametrize("value", [None, False, 0])
def test_a_telltale_that_says_nothing_is_no_reason(key: str, value: Any) -> None:
    if key == "layer_types" and value is not None:
        return
    config = {**PLAIN, "model_type": "my_model", key: value}
    if value is False and key in ("sliding_window", "kv_lora_rank"):
        with pytest.raises(CheckpointError, match=f"{key} must be an integer"):
            read_config(config)
        return
    assert read_config(config).stack == read_config({**PLAIN, "model_type": "my_model"}).stack


def test_unknown_harmless_keys_are_returned() -> None:
    found = read("unknown-plain", hidden_act="silu", torch_dtype="float16")
    assert found.unknown_keys == ("wonderful_new_dropout",)
    assert "hidden_act" in found.ignored
    assert found.family == "generic"
    assert any("my_model" in note for note in found.notes)


def test_assume_changes_nothing_that_is_understood() -> None:
    config = load("gemma2-alternate")
    assert read_config(config, assume="full").stack == read_config(config).stack
    with pytest.raises(CheckpointError, match="assume must be empty or 'full'"):
        read_config(config, assume="half")


@pytest.mark.parametrize("model_type", ["longcat_flash", "albert"])
def test_models_whose_fields_mislead_are_refused(model_type: str) -> None:
    with pytest.raises(CheckpointError, match=f"{model_type} is not described"):
        read_config({**PLAIN, "model_type": model_type})


WRONG = [
    ("num_attention_heads", 32.5, "num_attention_heads must be an integer of 1 or more, found 32.5"),
    ("hidden_size", 4096.0, "hidden_size must be an integer of 1 or more, found 4096.0"),
    ("hidden_size", "4096", "hidden_size must be an integer of 1 or more, found '4096'"),
    ("hidden_size", True, "hidden_size must be an integer of 1 or more, found True"),
    ("hidden_size", math.nan, "hidden_size must be an integer of 1 or more, found nan"),
    ("hidden_size", -64, "hidden_size must lie in"),
    ("num_hidden_layers", 0, "num_hidden_layers must lie in"),
    ("num_hidden_layers", 10**6, "num_hidden_layers must be at most 10000, found 1000000"),
    ("vocab_size", 10**30, "vocab_size must lie in"),
    ("vocab_size", None, "no vocab_size"),
    ("num_attention_heads", [4] * 6, "num_attention_heads must be an integer"),
    ("rms_norm_eps", -1.0, "rms_norm_eps must be a finite number above 0, found -1.0"),
    ("rms_norm_eps", math.inf, "rms_norm_eps must be a finite number above 0"),
    ("rope_theta", math.nan, "rope_theta must be a finite number above 0"),
    ("rope_theta", "10000", "rope_theta must be a number, found '10000'"),
    ("rope_scaling", "linear", "rope_scaling must be an object, found 'linear'"),
    ("rope_scaling", {"type": "linear"}, "rope_scaling of type linear needs factor"),
    ("rope_scaling", {"type": "linear", "factor": True}, "rope_scaling.factor must be a number, found True"),
    ("rope_scaling", {"type": "longrope"}, "needs short_factor, a list of numbers"),
    ("rope_scaling", {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3}, "longrope needs 8 factors"),
    ("partial_rotary_factor", 1.5, "partial_rotary_factor must lie in"),
    ("layer_types", ["full_attention"] * 5, "layer_types lists 5 layers and num_hidden_layers says 6"),
    ("layer_types", "full_attention", "layer_types must be a list"),
    ("layer_types", ["sliding_attention"] * 6, "asks for sliding_attention, but sliding_window is None"),
    ("layer_types", ["chunked_attention"] * 6, "attention_chunk_size is absent"),
    ("sliding_window_pattern", "LLX", "must be an integer or letters L and G"),
    ("sliding_window_pattern", 0, r"sliding_window_pattern must lie in \[1, \d+\], found 0"),
    ("no_rope_layer_interval", 0, r"no_rope_layer_interval must lie in \[1, \d+\], found 0"),
    ("tie_word_embeddings", "yes", "tie_word_embeddings must be true or false, found 'yes'"),
    ("n_head", 8, "num_attention_heads 4 and n_head 8 contradict each other"),
    ("n_layer", 12, "num_hidden_layers 6 and n_layer 12 contradict each other"),
    ("model_type", 7, "model_type must be a word, found 7"),
    ("text_config", [1], r"text_config must be an object, found \[1\]"),
    ("num_kv_shared_layers", 6, "num_kv_shared_layers 6 must be less than num_hidden_layers 6"),
    ("no_rope_layers", [1, 0], "no_rope_layers must hold 6 values of 0 or 1"),
    ("num_local_experts", 4, "no num_experts_per_tok"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "message"), WRONG, ids=[f"{key}-{index}" for index, (key, *_) in enumerate(WRONG)]
)
def test_contradictions_are_one_clear_line(key: str, value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        read_config({**PLAIN, "model_type": "llama", key: value}, source="here.json")
    assert str(caught.value).startswith("here.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [None, [], "llama", 7, 3.5, True])
def test_what_is_no_object_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match="must be a JSON object of settings"):
        read_config(value)


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({"torch_dtype": "bfloat16"}, "bf16"), ({"dtype": "float32"}, "fp32"), ({"torch_dtype": "torch.float16"}, "fp16"),
        ({}, ""), ({"torch_dtype": None}, ""), ({"torch_dtype": "complex64"}, ""),
        ({"torch_dtype": "bfloat16", "quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
        ({"torch_dtype": "float16", "quantization_config": {"quant_method": "gptq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "awq", "w_bit": 4}}, "int4"),
        ({"quantization_config": {"load_in_8bit": True}}, "int8"),
        ({"torch_dtype": "float16", "quantization_config": {"quant_method": "other"}}, "fp16"),
    ],
)  # fmt: skip
def test_stored_type(settings: dict[str, Any], dtype: str) -> None:
    assert read_config({**PLAIN, "model_type": "llama", **settings}).weight_dtype == dtype


def test_reading_is_quick_and_imports_one_family(python: Any) -> None:
    code = """
import sys, time
from manyheads.checkpoints import read_config
config = {"model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
          "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000}
read_config(config)
best = min(((start := time.perf_counter()), read_config(config), time.perf_counter() - start)[2] for _ in range(20))
families = [name for name in sys.modules if name.startswith("manyheads.checkpoints.families.")]
print(best < 0.010, families, [name for name in ("torch", "numpy", "transformers", "sympy", "numba") if name in sys.modules])
"""
    done = python("-c", code)
    assert done.stdout.strip() == "True ['manyheads.checkpoints.families.llama'] []", done.stderr
