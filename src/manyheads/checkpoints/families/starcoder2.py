"""StarCoder 2: a Llama's frame around LayerNorms, a plain MLP, biases everywhere and, in most sizes, a window."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import LAYER, llama_layout, plain_mlp

__all__ = ["FAMILIES"]

FAMILIES = (
    like(
        LLAMA,
        "starcoder2",
        spellings={"mlp_bias": ("use_bias",)},
        defaults={"kv_heads": 2, "bias": True, "mlp_bias": True, "tied": True},
        norm="layer",
        shift=True,
        gated=False,
        bias_fields=(("bias", "qkvo"),),
        windows="all",
        layout=llama_layout(mlp=plain_mlp(LAYER, "model.layers.{i}.mlp.c_fc", "model.layers.{i}.mlp.c_proj")),
    ),
)
