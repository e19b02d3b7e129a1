"""EuroBERT: an encoder made of a Llama's parts, every token seeing every other."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import EMBED, FINAL_NORM, GATED_MLP, LLAMA_ATTENTION, LLAMA_NORMS, as_encoder

__all__ = ["FAMILIES"]

FAMILIES = (
    like(
        LLAMA,
        "eurobert",
        stack="rotary_encoder",
        defaults={"norm_eps": 1e-5},
        layout=as_encoder((*EMBED, *LLAMA_ATTENTION, *GATED_MLP, *LLAMA_NORMS, *FINAL_NORM)),
        prefixes=((("model.", ""),),),
        task_heads=(r"^lm_head\.", r"^classifier\.", r"^dense\."),
        copies=((r"^lm_head\.weight$", "tokens"),),
    ),
)
