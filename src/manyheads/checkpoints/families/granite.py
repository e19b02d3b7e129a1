"""Granite 3: a Llama whose logits are scaled by `attention_multiplier` instead of 1/sqrt(head_dim)."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like

__all__ = ["FAMILIES"]

FAMILIES = (like(LLAMA, "granite", defaults={"attention_multiplier": 1.0}),)
