"""Mistral 7B and its kin: a Llama with grouped heads and, in version 0.1, a window on every layer."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import LLAMA_LAYOUT, LLAMA_PREFIXES, ROTARY_BUFFERS

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="mistral",
        model_types=("mistral",),
        defaults={"kv_heads": 8, "window": 4096},
        windows="all",
        layout=LLAMA_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        nested_defaults={"vocab_size": 32000, "d_model": 4096, "mlp_width": 14336, "layers": 32, "heads": 32,
                         "context": 131072},  # fmt: skip
    ),
)
