"""Persimmon, also inside Fuyu: fused rows (head, 3, head_dim), norms on heads, half of each rotated, a plain MLP."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    HEAD,
    LAYER,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
    linear,
    norm,
    rows_by_head,
)

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="persimmon",
        model_types=("persimmon",),
        rope_share=("partial_rotary_factor",),
        derived=("head_dim", "kv_heads"),
        defaults={"rope_fraction": 0.5, "qk_norm": True},
        norm="layer",
        shift=True,
        gated=False,
        bias="qkvo",
        mlp_bias=True,
        qk_norm_field="head",
        layout=(
            *EMBED,
            *rows_by_head("model.layers.{i}.self_attn.query_key_value"),
            *linear("model.layers.{i}.self_attn.dense", LAYER + "self.o", "m (y v)", "m"),
            *norm("model.layers.{i}.self_attn.q_layernorm", LAYER + "self.q_norm", "q"),
            *norm("model.layers.{i}.self_attn.k_layernorm", LAYER + "self.k_norm", "q"),
            *linear("model.layers.{i}.mlp.dense_h_to_4h", LAYER + "mlp.up", "w m", "w"),
            *linear("model.layers.{i}.mlp.dense_4h_to_h", LAYER + "mlp.down", "m w", "m"),
            *LLAMA_NORMS,
            *norm("model.final_layernorm", "decoder.final_norm"),
            *HEAD,
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
