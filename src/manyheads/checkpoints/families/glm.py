"""GLM-4: grouped heads with biases on queries, keys and values, half of each head rotated in pairs, fused gate and up."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    FUSED_GATED_MLP,
    HEAD,
    LAYER,
    LLAMA_ATTENTION,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
    norm,
)

__all__ = ["FAMILIES"]

_DEFAULTS = {"kv_heads": 2, "head_dim": 128, "attention_bias": True, "rope_fraction": 0.5, "norm_eps": 1.5625e-07}
# GLM-4-0414 (glm4) puts a second norm on the output of each half; its names say "post" of two different places.
_FOUR_NORMS = (
    *LLAMA_NORMS,
    *norm("model.layers.{i}.post_self_attn_layernorm", LAYER + "out_attention_norm"),
    *norm("model.layers.{i}.post_mlp_layernorm", LAYER + "out_mlp_norm"),
)

FAMILIES = (
    Family(
        name="glm",
        model_types=("glm",),
        rope_share=("partial_rotary_factor",),
        defaults=_DEFAULTS,
        bias_fields=(("attention_bias", "qkv"),),
        rope_layout="interleaved",
        layout=(*EMBED, *LLAMA_ATTENTION, *FUSED_GATED_MLP, *LLAMA_NORMS, *FINAL_NORM, *HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
    Family(
        name="glm4",
        model_types=("glm4",),
        rope_share=("partial_rotary_factor",),
        defaults=_DEFAULTS,
        norm_places=("pre_attention", "out_attention", "pre_mlp", "out_mlp"),
        bias_fields=(("attention_bias", "qkv"),),
        rope_layout="interleaved",
        layout=(*EMBED, *LLAMA_ATTENTION, *FUSED_GATED_MLP, *_FOUR_NORMS, *FINAL_NORM, *HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
