"""Llama 1 to 3 and everything that saves itself as one (SmolLM, TinyLlama, DeepSeek 7B and 67B, Yi)."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import LLAMA_LAYOUT, LLAMA_PREFIXES

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="llama",
        model_types=("llama", "code_llama"),
        bias_fields=(("attention_bias", "qkvo"),),
        layout=LLAMA_LAYOUT,
        ignored=(r"rotary_emb\.inv_freq$",),
        prefixes=LLAMA_PREFIXES,
    ),
)
