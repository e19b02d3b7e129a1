"""EuroBERT: an encoder made of a Llama's parts, every token seeing every other."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    GATED_MLP,
    LLAMA_ATTENTION,
    LLAMA_NORMS,
    ROTARY_BUFFERS,
    as_encoder,
)

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="eurobert",
        model_types=("eurobert",),
        stack="rotary_encoder",
        defaults={"norm_eps": 1e-5},
        bias_fields=(("attention_bias", "qkvo"),),
        layout=as_encoder((*EMBED, *LLAMA_ATTENTION, *GATED_MLP, *LLAMA_NORMS, *FINAL_NORM)),
        ignored=ROTARY_BUFFERS,
        prefixes=((("model.", ""),),),
        task_heads=(r"^lm_head\.", r"^classifier\.", r"^dense\."),
        copies=((r"^lm_head\.weight$", "tokens"),),
    ),
)
