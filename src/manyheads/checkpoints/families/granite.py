"""Granite 3: a Llama whose logits are scaled by `attention_multiplier` instead of 1/sqrt(head_dim)."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import LLAMA_LAYOUT, LLAMA_PREFIXES, ROTARY_BUFFERS

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="granite",
        model_types=("granite",),
        defaults={"attention_multiplier": 1.0},
        bias_fields=(("attention_bias", "qkvo"),),
        layout=LLAMA_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
