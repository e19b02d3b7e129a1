"""Seed-OSS: a Llama with a head size of its own and biases on queries, keys and values, the output's by a flag."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import LLAMA_LAYOUT, LLAMA_PREFIXES, ROTARY_BUFFERS

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="seed_oss",
        model_types=("seed_oss",),
        defaults={"kv_heads": 8, "head_dim": 128, "attention_bias": True},
        bias_fields=(("attention_bias", "qkv"), ("o_bias", "o")),
        layout=LLAMA_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
