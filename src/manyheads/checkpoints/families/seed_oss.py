"""Seed-OSS: a Llama with a head size of its own and biases on queries, keys and values, the output's by a flag."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like

__all__ = ["FAMILIES"]

FAMILIES = (
    like(
        LLAMA,
        "seed_oss",
        defaults={"kv_heads": 8, "head_dim": 128, "attention_bias": True},
        bias_fields=(("attention_bias", "qkv"), ("o_bias", "o")),
    ),
)
