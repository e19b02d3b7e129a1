"""Mistral 7B and its kin: a Llama with grouped heads and, in version 0.1, a window on every layer."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like

__all__ = ["FAMILIES"]

FAMILIES = (
    like(
        LLAMA,
        "mistral",
        defaults={"kv_heads": 8, "window": 4096},
        bias_fields=(),
        windows="all",
        nested_defaults={**LLAMA.nested_defaults, "mlp_width": 14336, "context": 131072},
    ),
)
