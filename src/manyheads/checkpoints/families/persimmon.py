"""Persimmon, also inside Fuyu: fused rows (head, 3, head_dim), norms on heads, half of each rotated, a plain MLP."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import LAYER, linear, llama_layout, norm, plain_mlp, rows_by_head

__all__ = ["FAMILIES"]

FAMILIES = (
    like(
        LLAMA,
        "persimmon",
        rope_share=("partial_rotary_factor",),
        derived=("head_dim", "kv_heads"),
        defaults={"rope_fraction": 0.5, "qk_norm": True},
        norm="layer",
        shift=True,
        gated=False,
        bias="qkvo",
        bias_fields=(),
        mlp_bias=True,
        qk_norm_field="head",
        layout=llama_layout(
            attention=(
                *rows_by_head("model.layers.{i}.self_attn.query_key_value"),
                *linear("model.layers.{i}.self_attn.dense", LAYER + "self.o", "m (y v)", "m"),
                *norm("model.layers.{i}.self_attn.q_layernorm", LAYER + "self.q_norm", "q"),
                *norm("model.layers.{i}.self_attn.k_layernorm", LAYER + "self.k_norm", "q"),
            ),
            mlp=plain_mlp(LAYER, "model.layers.{i}.mlp.dense_h_to_4h", "model.layers.{i}.mlp.dense_4h_to_h"),
            final_norm=norm("model.final_layernorm", "decoder.final_norm"),
        ),
    ),
)
