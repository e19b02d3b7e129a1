"""A GGUF file as a model: its metadata turned into a configuration, its tensors held against what that describes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from manyheads.checkpoints.config import ModelConfig, read_config
from manyheads.checkpoints.families import named
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.gguf_header import ArrayInfo, GGUFHeader
from manyheads.checkpoints.gguf_layouts import gguf_layout
from manyheads.checkpoints.gguf_parts import read_gguf_model
from manyheads.checkpoints.unread_keys import is_inert, may_change_attention
from manyheads.checkpoints.verify import HeaderCheck, check_header
from manyheads.errors import CheckpointError
from manyheads.quoting import shown, shown_path

__all__ = ["ARCHITECTURES", "gguf_family", "gguf_to_config", "open_gguf"]

# general.architecture: the model_type that reads its configuration.
ARCHITECTURES: Mapping[str, str] = {
    "bloom": "bloom", "cohere2": "cohere2", "command-r": "cohere", "deepseek": "deepseek", "deepseek2": "deepseek_v2",
    "falcon": "falcon", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "gpt-oss": "gpt_oss",
    "gpt2": "gpt2", "gptneox": "gpt_neox", "granite": "granite", "llama": "llama", "olmo": "olmo", "olmo2": "olmo2",
    "olmoe": "olmoe", "phi2": "phi", "phi3": "phi3", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
}  # fmt: skip

# Key below the architecture's own prefix: the setting it is. What is not here changes neither shapes nor attention,
# or is refused by its name.
_KEYS = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings", "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size", "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps", "attention.layer_norm_epsilon": "layer_norm_eps",
    "rope.freq_base": "rope_theta", "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size", "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping", "final_logit_softcapping": "final_logit_softcapping",
    "attention.q_lora_rank": "q_lora_rank", "attention.kv_lora_rank": "kv_lora_rank",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace", "attention.scale": "attention_multiplier",
    "use_parallel_residual": "use_parallel_residual", "logit_scale": "logit_scale",
}  # fmt: skip
# Families whose biases no field switches.
_ALWAYS_BIASED = ("bloom", "gpt2", "phi", "qwen2", "qwen2_moe")

_UNDERSTOOD = (
    "attention.value_length", "attention.key_length_mla", "attention.value_length_mla", "attention.causal",
    "expert_shared_count", "attention.sliding_window_pattern", "rope.dimension_count", "attention.clamp_kqv",
    "attention.max_alibi_bias", "attention.temperature_scale", "attention.key_length_swa", "attention.value_length_swa",
)  # fmt: skip


@dataclass
class _File:
    """A GGUF file on the way to a configuration: what it amounts to so far, its own metadata, its tensors' shapes."""

    config: dict[str, Any]
    own: Mapping[str, object]
    names: Mapping[str, tuple[int, ...]]


def open_gguf(path: str | os.PathLike[str], *, assume: str = "") -> tuple[ModelConfig, HeaderCheck, dict[str, Any]]:
    """Read the GGUF file `path`, or the parts of the split file that it belongs to, as a model: what its metadata says, the
    parameters and bytes of the headers, tensor by tensor, and the configuration that the metadata amounts to.

    Raises CheckpointError, one line: for what `read_gguf_model` refuses, an architecture that is not described, metadata that
    is absent or contradicts itself, and tensors that are not those of the model that the metadata describes.
    """
    header = read_gguf_model(path)
    where = shown_path(path)
    config = gguf_to_config(header)
    model = read_config(config, source=where, assume=assume)
    tensors = {tensor.name: tensor for tensor in header.tensors}
    family = gguf_family(named(model.family), header)
    found = check_header(tensors, family, model.stack, source=where, config=config)
    if found is None:
        raise AssertionError("a configuration made here names no quantisation")
    if any(name.startswith("rope_f") for name in tensors):
        scaled = "rotary frequencies are scaled by a table in the file, which is not read"
        model = replace(model, notes=(*model.notes, scaled))
    return model, found, config


def gguf_family(family: Family, header: GGUFHeader) -> Family:
    """`family` with the names and the order that a GGUF file of its architecture has.

    Values are those of the family but for the gains of norms that are 1 + w: the file holds 1 + w (llama.cpp adds it).
    """
    layout = gguf_layout(str(header.metadata["general.architecture"]), {tensor.name for tensor in header.tensors})
    return replace(
        family, layout=layout, prefixes=(), endings=(), task_heads=(),
        ignored=(r"^rope_freqs\.weight$", r"^rope_factors_(long|short)\.weight$"),
    )  # fmt: skip


def gguf_to_config(header: GGUFHeader) -> dict[str, Any]:
    """The configuration, spelled as Hugging Face does, that the metadata and tensors of a GGUF file amount to."""
    where, metadata = shown_path(header.path), header.metadata
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise CheckpointError(f"{where}: GGUF architecture {shown(architecture)} is not described; known: {known}")
    names = {tensor.name: tensor.shape for tensor in header.tensors}
    if not names:
        raise CheckpointError(f"{where}: holds no tensors (a vocabulary alone?); expected a model")
    own = {
        # Numbers are float32 in the file: 1e-05 and not 9.999999747378752e-06.
        key[len(architecture) + 1 :]: float(f"{value:.7g}") if isinstance(value, float) else value
        for key, value in metadata.items()
        if key.startswith(architecture + ".")
    }
    config: dict[str, Any] = {"model_type": ARCHITECTURES[architecture]}
    for key, value in own.items():
        if key in _KEYS:
            config[_KEYS[key]] = _single(value, f"{architecture}.{key}", own.get("block_count"), where)
        elif may_change_attention(key.replace(".", "_")) and not is_inert(value) and key not in _UNDERSTOOD:
            config[f"{architecture}.{key}"] = value  # the reader of configurations refuses it by this name
    _shapes(config, names, where)
    _check_vocabulary(header, architecture, config["vocab_size"], where)
    _windows(config, own, f"{where}: {architecture}")
    _rotation(config, own, where)
    own_function = _OWN.get(architecture)
    if own_function is not None:
        own_function(_File(config, own, names))
    return config


def _single(value: object, key: str, layers: object, where: str) -> object:
    """One value for all layers: a list of equal ones, one for each, counts as one."""
    if isinstance(value, ArrayInfo):
        raise CheckpointError(f"{where}: {key} has {value.length} values; expected one, or one for each layer")
    if not isinstance(value, tuple):
        return value
    if isinstance(layers, int) and len(value) != layers:
        raise CheckpointError(f"{where}: {key} has {len(value)} values for {layers} layers; expected one for each")
    if len(set(value)) != 1:
        raise CheckpointError(f"{where}: {key} differs by layer ({shown(value)}), which is not described")
    return value[0]


def _shapes(config: dict[str, Any], names: Mapping[str, tuple[int, ...]], where: str) -> None:
    """What tensors alone say: the vocabulary, whether the head is tied, which biases and norms there are."""
    table = names.get("token_embd.weight")
    if table is None or len(table) != 2:
        raise CheckpointError(f"{where}: no token_embd.weight of two axes; found {shown(table)}")
    config["vocab_size"] = table[0]
    config["tie_word_embeddings"] = "output.weight" not in names
    if config["model_type"] not in _ALWAYS_BIASED:
        config["attention_bias"] = "blk.0.attn_q.bias" in names or "blk.0.attn_qkv.bias" in names
    if config["model_type"] in ("cohere", "phi"):
        key = "use_qk_norm" if config["model_type"] == "cohere" else "qk_layernorm"
        config[key] = "blk.0.attn_q_norm.weight" in names


def _check_vocabulary(header: GGUFHeader, architecture: str, rows: int, where: str) -> None:
    """Every list of the vocabulary has an entry for each row of the embeddings: llama.cpp loads no other file."""
    for key in ("tokens", "scores", "token_type"):
        found = header.metadata.get(f"tokenizer.ggml.{key}")
        length = found.length if isinstance(found, ArrayInfo) else len(found) if isinstance(found, tuple) else rows
        if length != rows:
            raise CheckpointError(
                f"{where}: tokenizer.ggml.{key} has {length} entries and token_embd.weight {rows} rows; they must be equal"
            )
    said = header.metadata.get(f"{architecture}.vocab_size", rows)
    if said != rows:
        raise CheckpointError(
            f"{where}: {architecture}.vocab_size is {shown(said)} and token_embd.weight has {rows} rows; they must be equal"
        )


def _windows(config: dict[str, Any], own: Mapping[str, object], where: str) -> None:
    """Which layers see a window: every how-manieth sees all, or a flag for each; where neither is said, the family's habit."""
    key = "attention.sliding_window_pattern"
    pattern = own.get(key)
    if isinstance(pattern, tuple | ArrayInfo):
        flags = pattern if isinstance(pattern, tuple) else ()
        if len(flags) != own.get("block_count") or not all(isinstance(flag, bool) for flag in flags):
            count = f"{own.get('block_count')} layers"
            raise CheckpointError(f"{where}.{key} is {shown(pattern)}; expected true or false for each of the {count}")
        config["layer_types"] = ["sliding_attention" if flag else "full_attention" for flag in flags]
    elif pattern is not None:
        config["sliding_window_pattern"] = pattern


def _rotation(config: dict[str, Any], own: Mapping[str, object], where: str) -> None:
    """Rotary width and scaling; the table that llama3 and longrope scale by is a tensor, and not in the header."""
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    if config.get("head_dim") is None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        config.pop("head_dim", None)
        if width % heads == 0:
            config["head_dim"] = width // heads
    rotary = own.get("rope.dimension_count")
    windowed = own.get("rope.dimension_count_swa", rotary)
    if windowed != rotary:
        raise CheckpointError(
            f"{where}: windowed layers turn {shown(windowed)} elements of a head (rope.dimension_count_swa), the others "
            f"{shown(rotary)}: that they differ is not described"
        )
    if isinstance(rotary, int) and rotary != config.get("head_dim"):
        config["rope.dimension_count"] = rotary
    kind = own.get("rope.scaling.type")
    if kind in ("linear", "yarn"):
        scaling = {
            "rope_type": kind,
            "factor": own.get("rope.scaling.factor"),
            "original_max_position_embeddings": own.get("rope.scaling.original_context_length"),
        }
        config["rope_scaling"] = {key: value for key, value in scaling.items() if value is not None}


def _llama(file: _File) -> None:
    """Mixtral is a llama with experts here."""
    if file.config.get("num_experts"):
        file.config["model_type"] = "mixtral"
        file.config.pop("moe_intermediate_size", None)
    file.config["mlp_bias"] = "blk.0.ffn_up.bias" in file.names


def _qwen(file: _File) -> None:
    """A window is switched on by its presence."""
    file.config["use_sliding_window"] = bool(file.config.get("sliding_window"))


def _gemma(file: _File) -> None:
    """The score's scale is not written: llama.cpp takes d_model/heads for the 27B models, which it knows by depth."""
    largest = {"gemma2": 46, "gemma3_text": 62}.get(file.config["model_type"])
    width, heads, layers = (file.config.get(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    if largest is not None and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        file.config["query_pre_attn_scalar"] = width / heads if layers == largest else file.config.get("head_dim")


def _falcon(file: _File) -> None:
    """Which decoder it is shows in its norms and its key/value heads."""
    two = "blk.0.attn_norm_2.weight" in file.names
    kv_heads = file.config.pop("num_key_value_heads", 1)
    grouped = two or kv_heads != 1
    file.config.update(num_kv_heads=kv_heads, new_decoder_architecture=grouped, multi_query=kv_heads == 1)
    file.config["num_ln_in_parallel_attn"] = 2 if two else 1
    file.config["bias"] = file.config.pop("attention_bias")


def _deepseek2(file: _File) -> None:
    """Latent attention is written as heads of its expanded or its absorbed size; both are taken apart here."""
    if "blk.0.exp_probs_b.bias" in file.names or any(name.endswith("exp_probs_b.bias") for name in file.names):
        file.config["model_type"] = "deepseek_v3"
    whole, rotary = (
        file.own.get("attention.key_length_mla", file.own.get("attention.key_length")),
        file.own.get("rope.dimension_count"),
    )
    values = file.own.get("attention.value_length_mla", file.own.get("attention.value_length"))
    if isinstance(whole, int) and isinstance(rotary, int):
        file.config.update(qk_rope_head_dim=rotary, qk_nope_head_dim=whole - rotary, v_head_dim=values)
    file.config.pop("rope.dimension_count", None)
    file.config.update(head_dim=rotary, n_shared_experts=file.own.get("expert_shared_count", 0))
    file.config["num_key_value_heads"] = file.config.get("num_attention_heads")
    file.config.setdefault("q_lora_rank", None)
    file.config.setdefault("num_experts", None)
    multiplier = file.own.get("rope.scaling.yarn_log_multiplier")
    if isinstance(multiplier, float) and isinstance(file.config.get("rope_scaling"), dict):
        file.config["rope_scaling"].update(mscale=10 * multiplier, mscale_all_dim=10 * multiplier)


def _deepseek(file: _File) -> None:
    """The shared experts are counted, not measured."""
    file.config["n_shared_experts"] = file.own.get("expert_shared_count", 0)


_OWN: Mapping[str, Callable[[_File], None]] = {
    "deepseek": _deepseek, "deepseek2": _deepseek2, "falcon": _falcon, "gemma2": _gemma, "gemma3": _gemma,
    "llama": _llama, "qwen2": _qwen, "qwen2moe": _qwen, "qwen3": _qwen, "qwen3moe": _qwen,
}  # fmt: skip
