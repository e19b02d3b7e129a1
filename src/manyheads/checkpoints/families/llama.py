"""Llama 1 to 3 and everything that saves itself as one (SmolLM, TinyLlama, DeepSeek 7B and 67B, Yi)."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import LLAMA_LAYOUT, LLAMA_PREFIXES, ROTARY_BUFFERS

__all__ = ["FAMILIES", "LLAMA"]

LLAMA = Family(
    name="llama",
    model_types=("llama", "code_llama"),
    bias_fields=(("attention_bias", "qkvo"),),
    layout=LLAMA_LAYOUT,
    ignored=ROTARY_BUFFERS,
    prefixes=LLAMA_PREFIXES,
    nested_defaults={"vocab_size": 32000, "d_model": 4096, "mlp_width": 11008, "layers": 32, "heads": 32,
                     "context": 2048},  # fmt: skip
)

FAMILIES = (LLAMA,)
