"""A decoder of a kind that nothing names: the fields that most decoders share, and no habits of its own."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import EXPERTS, LLAMA_LAYOUT, LLAMA_PREFIXES, NORMS_PER_HEAD

__all__ = ["GENERIC"]

GENERIC = Family(
    name="generic",
    model_types=(),
    bias_fields=(("attention_bias", "qkvo"), ("qkv_bias", "qkv"), ("o_bias", "o")),
    qk_norm_field="head",
    layout=(*LLAMA_LAYOUT, *NORMS_PER_HEAD, *EXPERTS),
    ignored=(r"rotary_emb\.inv_freq$",),
    prefixes=LLAMA_PREFIXES,
)
