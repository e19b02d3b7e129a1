"""MiniCPM3: multi-head latent attention with a rotation in halves, a plain gated MLP, tied embeddings."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    GATED_MLP,
    HEAD,
    LATENT_ATTENTION,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
)

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="minicpm3",
        model_types=("minicpm3",),
        defaults={
            "rank": 256, "q_rank": 768, "nope_dim": 64, "mla_rope_dim": 32, "v_head_dim": 64, "tied": True,
            "norm_eps": 1e-5,
        },  # fmt: skip
        bias_fields=(("attention_bias", "qkvo"),),
        latent=True,
        layout=(*EMBED, *LATENT_ATTENTION, *GATED_MLP, *LLAMA_NORMS, *FINAL_NORM, *HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
