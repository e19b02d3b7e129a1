"""GLM-4: grouped heads with biases on queries, keys and values, half of each head rotated in pairs, fused gate and up."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import FUSED_GATED_MLP, LAYER, LLAMA_NORMS, llama_layout, norm

__all__ = ["FAMILIES"]

_GLM = like(
    LLAMA,
    "glm",
    rope_share=("partial_rotary_factor",),
    defaults={"kv_heads": 2, "head_dim": 128, "attention_bias": True, "rope_fraction": 0.5, "norm_eps": 1.5625e-07},
    bias_fields=(("attention_bias", "qkv"),),
    rope_layout="interleaved",
    layout=llama_layout(mlp=FUSED_GATED_MLP),
)
# GLM-4-0414 (glm4) puts a second norm on the output of each half; its names say "post" of two different places.
_FOUR_NORMS = (
    *LLAMA_NORMS,
    *norm("model.layers.{i}.post_self_attn_layernorm", LAYER + "out_attention_norm"),
    *norm("model.layers.{i}.post_mlp_layernorm", LAYER + "out_mlp_norm"),
)

FAMILIES = (
    _GLM,
    like(
        _GLM,
        "glm4",
        norm_places=("pre_attention", "out_attention", "pre_mlp", "out_mlp"),
        layout=llama_layout(mlp=FUSED_GATED_MLP, norms=_FOUR_NORMS),
    ),
)
