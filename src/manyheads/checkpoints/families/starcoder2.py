"""StarCoder 2: a Llama's frame around LayerNorms, a plain MLP, biases everywhere and, in most sizes, a window."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    HEAD,
    LAYER,
    LLAMA_ATTENTION,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
    linear,
)

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="starcoder2",
        model_types=("starcoder2",),
        spellings={"mlp_bias": ("use_bias",)},
        defaults={"kv_heads": 2, "bias": True, "mlp_bias": True, "tied": True},
        norm="layer",
        shift=True,
        gated=False,
        bias_fields=(("bias", "qkvo"),),
        windows="all",
        layout=(
            *EMBED,
            *LLAMA_ATTENTION,
            *linear("model.layers.{i}.mlp.c_fc", LAYER + "mlp.up", "w m", "w"),
            *linear("model.layers.{i}.mlp.c_proj", LAYER + "mlp.down", "m w", "m"),
            *LLAMA_NORMS,
            *FINAL_NORM,
            *HEAD,
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
