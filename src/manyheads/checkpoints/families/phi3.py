"""Phi-3 and Phi-4: a Llama whose query, key and value matrices are one, and whose gate and up matrices are one."""

from __future__ import annotations

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    FUSED_GATED_MLP,
    HEAD,
    LAYER,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
    linear,
)

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="phi3",
        model_types=("phi3",),
        rope_share=("partial_rotary_factor",),
        defaults={"norm_eps": 1e-5},
        windows="all",
        layout=(
            *EMBED,
            Stored(
                "model.layers.{i}.self_attn.qkv_proj.weight",
                ((LAYER + "self.q", "(h q) m"), (LAYER + "self.k", "(k q) m"), (LAYER + "self.v", "(k v) m")),
            ),
            *linear("model.layers.{i}.self_attn.o_proj", LAYER + "self.o", "m (y v)", "m"),
            *FUSED_GATED_MLP,
            *LLAMA_NORMS,
            *FINAL_NORM,
            *HEAD,
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
