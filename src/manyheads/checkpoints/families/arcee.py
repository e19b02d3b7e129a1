"""AFM (Arcee): a Llama whose MLP has no gate."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    HEAD,
    LLAMA_ATTENTION,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    PLAIN_MLP,
    ROTARY_BUFFERS,
)

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="arcee",
        model_types=("arcee",),
        defaults={"norm_eps": 1e-5},
        gated=False,
        bias_fields=(("attention_bias", "qkvo"),),
        layout=(*EMBED, *LLAMA_ATTENTION, *PLAIN_MLP, *LLAMA_NORMS, *FINAL_NORM, *HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
