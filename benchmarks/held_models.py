"""Tiny random transformers models of every way to keep a cache, each beside its spec, and the measuring of caches.

Used by benchmarks/held.py, which writes docs/held-bytes.md, and by tests/cost/test_engines_measured.py. The specs are written
by hand, so that what is measured is compared with a description that no reader of configurations made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from manyheads.spec import AttentionSpec, Bidirectional, Block, Borrowed, Chunk, Cross, Stack, StackSpec, State, Window

__all__ = ["BATCH", "MODELS", "WINDOW", "Tiny", "build", "dynamic_bytes", "static_bytes", "tensor_bytes"]

VOCABULARY = 64
WINDOW = 6
BATCH = 2


@dataclass(frozen=True)
class Tiny:
    """One model: how it keeps its cache, the class of its configuration and what goes into it, and its spec.

    `source_tokens`: what its encoder reads, 0 without one. `dtype`: what it runs in.
    """

    name: str
    scheme: str
    config: str
    settings: dict[str, Any]
    spec: StackSpec
    dtype: str = "bf16"
    source_tokens: int = 0


def heads(kv: int, **more: Any) -> AttentionSpec:
    """Four query heads of 8 over `kv` key/value heads, 32 wide."""
    return AttentionSpec.gqa(32, 4, kv, head_dim=8, **more)


def stack(*layers: AttentionSpec, cross: AttentionSpec | None = None) -> StackSpec:
    """A decoder of these attentions alone, which is all that a cache depends on; `cross` stands in every layer."""
    blocks = tuple(Block((layer,) if cross is None else (layer, cross)) for layer in layers)
    return StackSpec((Stack("decoder", 32, blocks),))


def delta_rule(num_heads: int, state_heads: int, v_head_dim: int, decay: str) -> AttentionSpec:
    """A gated delta rule with keys of 8 and four taps, as Qwen3-Next and Kimi Linear have it."""
    state = State(
        num_heads, state_heads, state_heads, 8, 8, v_head_dim, "identity", normalised=False, rule="gated_delta",
        decay=decay, beta="per_head", conv_width=4,
    )  # fmt: skip
    plain = AttentionSpec.linear(32, num_heads, head_dim=8)
    return AttentionSpec(
        d_model=32, num_heads=num_heads, kv=state, positions=plain.positions, mask=plain.mask, scale=plain.scale
    )


MLA = AttentionSpec.mla(32, 4, rank=16, nope_dim=8, rope_dim=4, v_head_dim=6)
FULL, WINDOWED, CHUNKED = heads(2), heads(2, mask=Window(WINDOW)), heads(2, mask=Chunk(WINDOW))
CROSS = heads(4, source=Cross(32), mask=Bidirectional())
GATED_DELTA, KDA = delta_rule(2, 4, 12, "per_head"), delta_rule(4, 4, 8, "per_channel")

_HEADS: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_WINDOWED = _HEADS | {"sliding_window": WINDOW}
_MIXTURE: dict[str, Any] = {"moe_intermediate_size": 16, "num_experts_per_tok": 2}
_LATENT = {key: size for key, size in _HEADS.items() if key != "head_dim"} | {
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": None, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8,
    "v_head_dim": 6,
}  # fmt: skip
_ROUTED = _LATENT | _MIXTURE | {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1}
_DELTA: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    "linear_conv_kernel_dim": 4,
}  # fmt: skip
_TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

MODELS: tuple[Tiny, ...] = (
    Tiny("llama", "GQA", "LlamaConfig", _HEADS | {"num_hidden_layers": 3}, stack(*[FULL] * 3)),
    Tiny(
        "gpt2", "MHA", "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": 2},
        stack(*[heads(4)] * 2), "fp32",
    ),
    Tiny(
        "falcon", "MQA", "FalconConfig",
        {
            "vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
            "multi_query": True, "bos_token_id": 1, "eos_token_id": 2,
        },
        stack(*[heads(1)] * 2), "fp32",
    ),
    Tiny("mistral", "window in every layer", "MistralConfig", _WINDOWED | {"num_hidden_layers": 3},
         stack(*[WINDOWED] * 3), "fp32"),
    Tiny("gemma2", "window, full 1:1", "Gemma2Config", _WINDOWED | {"num_hidden_layers": 4},
         stack(*[WINDOWED, FULL] * 2)),
    Tiny("gemma3", "window, full 5:1", "Gemma3TextConfig", _WINDOWED | {"num_hidden_layers": 7},
         stack(*[WINDOWED] * 5, FULL, WINDOWED), "fp32"),
    Tiny("gpt_oss", "window, full 1:1, sinks", "GptOssConfig",
         _WINDOWED | {"num_hidden_layers": 4, "num_local_experts": 4, "num_experts_per_tok": 2},
         stack(*[WINDOWED, FULL] * 2)),
    Tiny("gemma3n", "window, full 4:1, half the layers borrow", "Gemma3nTextConfig",
         _WINDOWED | {
             "num_hidden_layers": 10, "num_kv_shared_layers": 5, "vocab_size_per_layer_input": VOCABULARY,
             "hidden_size_per_layer_input": 8, "laurel_rank": 4,
         },
         stack(
             *[WINDOWED] * 4, FULL, *[heads(2, mask=Window(WINDOW), source=Borrowed(3))] * 4,
             heads(2, source=Borrowed(4)),
         )),
    Tiny("llama4", "chunks, full 3:1", "Llama4TextConfig",
         _HEADS | {
             "num_hidden_layers": 4, "attention_chunk_size": WINDOW, "intermediate_size_mlp": 48,
             "num_local_experts": 2,
         },
         stack(*[CHUNKED] * 3, FULL)),
    Tiny("deepseek_v2", "MLA", "DeepseekV2Config", _ROUTED | {"num_hidden_layers": 3}, stack(*[MLA] * 3), "fp32"),
    Tiny("deepseek_v3", "MLA", "DeepseekV3Config", _ROUTED | {"num_hidden_layers": 3, "q_lora_rank": 12},
         stack(*[MLA] * 3)),
    Tiny("qwen3_next", "gated delta rule, full 3:1", "Qwen3NextConfig",
         _HEADS | _MIXTURE | _DELTA | {
             "num_hidden_layers": 4, "num_experts": 4, "shared_expert_intermediate_size": 16,
         },
         stack(*[GATED_DELTA] * 3, FULL)),
    Tiny("kimi_linear", "delta rule by channel, MLA 3:1", "KimiLinearConfig",
         _LATENT | _MIXTURE | {
             "num_hidden_layers": 4, "num_experts": 4, "linear_head_dim": 8, "linear_num_heads": 4,
             "linear_conv_kernel_dim": 4,
             "layer_types": ["linear_attention"] * 3 + ["full_attention"],
         },
         stack(*[KDA] * 3, MLA)),
    Tiny("t5", "encoder-decoder, MHA", "T5Config",
         {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3,
          "num_heads": 4} | _TOKENS,
         stack(*[heads(4)] * 3, cross=CROSS), "fp32", source_tokens=7),
    Tiny("whisper", "encoder-decoder, MHA", "WhisperConfig",
         {"vocab_size": VOCABULARY, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3,
          "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
          "num_mel_bins": 8, "max_source_positions": 12} | _TOKENS,
         stack(*[heads(4)] * 3, cross=CROSS), source_tokens=12),
)  # fmt: skip

_TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}


def build(tiny: Tiny) -> Any:
    """The model with random weights, from seed 0, in its format."""
    torch.manual_seed(0)
    config = getattr(transformers, tiny.config)(**tiny.settings)
    kind = transformers.AutoModelForSeq2SeqLM if tiny.name == "t5" else transformers.AutoModelForCausalLM
    if tiny.name == "whisper":
        return transformers.WhisperForConditionalGeneration(config).eval().to(_TORCH[tiny.dtype])
    return kind.from_config(config).eval().to(_TORCH[tiny.dtype])


def _layers(cache: Any) -> list[Any]:
    if isinstance(cache, EncoderDecoderCache):
        return [*cache.self_attention_cache.layers, *cache.cross_attention_cache.layers]
    return list(cache.layers)


def _tensors(cache: Any) -> Iterator[torch.Tensor]:
    """Keys, values and states of every layer; not the counters beside them."""
    for layer in _layers(cache):
        states = [*getattr(layer, "conv_states", {}).values(), *getattr(layer, "recurrent_states", {}).values()]
        for tensor in (getattr(layer, "keys", None), getattr(layer, "values", None), *states):
            if tensor is not None:
                yield tensor


def tensor_bytes(cache: Any) -> tuple[int, int]:
    """(logical, storage) bytes of a cache: what its tensors say, and what their storages hold, each counted once."""
    logical, storages = 0, {}
    for tensor in _tensors(cache):
        logical += tensor.numel() * tensor.element_size()
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return logical, sum(storages.values())


def _encoded(model: Any, tiny: Tiny) -> dict[str, Any]:
    """What the decoder needs of an encoder that read `source_tokens` tokens; nothing where there is none."""
    if not tiny.source_tokens:
        return {}
    if tiny.name == "whisper":
        # The convolutions in front halve the frames.
        read = {"input_features": torch.randn(BATCH, 8, 2 * tiny.source_tokens).to(_TORCH[tiny.dtype])}
    else:
        read = {"input_ids": torch.randint(3, VOCABULARY, (BATCH, tiny.source_tokens))}
    return {"encoder_outputs": model.get_encoder()(**read)}


def _run(model: Any, tiny: Tiny, cache: Any, prompt: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """`tensor_bytes` after a prefill of `prompt` tokens, and after one more."""
    word = "decoder_input_ids" if tiny.source_tokens else "input_ids"
    with torch.no_grad():
        more, measured = _encoded(model, tiny), []
        for tokens in (prompt, 1):
            model(**{word: torch.randint(3, VOCABULARY, (BATCH, tokens))}, cache=cache, use_cache=True, **more)
            measured.append(tensor_bytes(cache))
    return measured[0], measured[1]


def dynamic_bytes(model: Any, tiny: Tiny, prompt: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """What a DynamicCache made from the decoder's configuration holds: after prefill, and after one more step."""
    config = model.get_decoder().config if tiny.source_tokens else model.config
    cache: Any = DynamicCache(config=config)
    if tiny.source_tokens:
        cache = EncoderDecoderCache(cache, DynamicCache(config=config))
    return _run(model, tiny, cache, prompt)


def static_bytes(model: Any, tiny: Tiny, prompt: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The same of a StaticCache with room for the prompt and one more token."""
    config = model.get_decoder().config if tiny.source_tokens else model.config
    cache: Any = StaticCache(config, max_cache_len=prompt + 1)
    if tiny.source_tokens:
        cache = EncoderDecoderCache(cache, StaticCache(config, max_cache_len=tiny.source_tokens))
    return _run(model, tiny, cache, prompt)
