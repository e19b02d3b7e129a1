"""Phi-3 and Phi-4: a Llama whose query, key and value matrices are one, and whose gate and up matrices are one."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import FUSED_GATED_MLP, LAYER, fused_projections, linear, llama_layout

__all__ = ["FAMILIES"]

_FUSED_ATTENTION = (
    fused_projections("model.layers.{i}.self_attn.qkv_proj", LAYER + "self")[0],
    *linear("model.layers.{i}.self_attn.o_proj", LAYER + "self.o", "m (y v)", "m"),
)

FAMILIES = (
    like(
        LLAMA,
        "phi3",
        rope_share=("partial_rotary_factor",),
        defaults={"norm_eps": 1e-5},
        bias_fields=(),
        windows="all",
        layout=llama_layout(attention=_FUSED_ATTENTION, mlp=FUSED_GATED_MLP),
    ),
)
