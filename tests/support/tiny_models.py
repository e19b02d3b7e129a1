"""Tiny random models of many families, saved as a user would have them: config, safetensors, and a tokenizer of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["FAMILIES", "VOCABULARY", "WINDOW", "save", "save_gguf", "save_tokenizer"]

VOCABULARY = 384
WINDOW = 8

_HEADS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 2, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
_MIXTURE = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}

# family: class of the model, class of its configuration, what goes into that
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", _HEADS | {"tie_word_embeddings": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", _HEADS | {"sliding_window": WINDOW}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _HEADS | {"sliding_window": WINDOW, "query_pre_attn_scalar": 8}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", _HEADS),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", _HEADS | {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "gpt_oss": (
        "GptOssForCausalLM", "GptOssConfig",
        _HEADS | {"sliding_window": WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM", "DeepseekV3Config",
        {key: size for key, size in _HEADS.items() if key != "head_dim"} | _MIXTURE | {
            "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 12, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8, "v_head_dim": 6, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
            "n_shared_experts": 1, "first_k_dense_replace": 1,
        },
    ),
    "qwen3_next": (
        "Qwen3NextForCausalLM", "Qwen3NextConfig",
        _HEADS | _MIXTURE | {
            "num_hidden_layers": 4, "num_experts": 4, "shared_expert_intermediate_size": 16,
            "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
            "linear_value_head_dim": 12, "linear_conv_kernel_dim": 4,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel", "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 1,
         "eos_token_id": 2},
    ),
    "bert": (
        "BertForMaskedLM", "BertConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "intermediate_size": 48, "max_position_embeddings": 64},
    ),
    "t5": (
        "T5ForConditionalGeneration", "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3,
         "num_heads": 4} | _TOKENS,
    ),
    "whisper": (
        "WhisperForConditionalGeneration", "WhisperConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
         "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
         "num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 24} | _TOKENS,
    ),
}  # fmt: skip


def save(family: str, folder: Path, *, tokenizer: bool = True, dtype: str = "float32") -> Path:
    """A model of `family` with random weights, the same each time, in `folder`."""
    import torch
    import transformers

    kind, config, settings = FAMILIES[family]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**settings))
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    if tokenizer:
        save_tokenizer(folder)
    return folder


def save_tokenizer(folder: Path, *, vocabulary: int = VOCABULARY, text: str = "") -> None:
    """A byte-level BPE of at most `vocabulary` tokens, learned from `text` or a few words that leave it small."""
    import tokenizers
    import transformers

    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["<pad>", "<s>", "</s>"], show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    bpe.train_from_iterator([text or "the cat sat on the mat and the dog ran after the cat " * 8], trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=bpe, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    ).save_pretrained(folder)


def save_gguf(folder: Path, path: Path) -> Path:
    """The tiny llama in `folder` as one GGUF file in float32, as llama.cpp's converter would write it."""
    import json

    import gguf
    from safetensors.numpy import load_file

    config = FAMILIES["llama"][2]
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    words = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    # as the converter does: one word for each row of the embeddings
    writer.add_token_list(words + [f"[PAD{number}]" for number in range(len(words), config["vocab_size"])])
    writer.add_token_merges([" ".join(pair) for pair in vocabulary["merges"]])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        stored = tensor
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if part in name:  # llama.cpp interleaves the halves that RoPE turns
                rows = tensor.shape[0] // config[heads] // 2
                stored = tensor.reshape(config[heads], 2, rows, -1).swapaxes(1, 2).reshape(tensor.shape)
        writer.add_tensor(_gguf_name(name), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


_GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def _gguf_name(name: str) -> str:
    for theirs, ours in _GGUF_NAMES.items():
        name = name.replace(theirs, ours)
    return name
