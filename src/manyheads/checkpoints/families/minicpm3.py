"""MiniCPM3: multi-head latent attention with a rotation in halves, a plain gated MLP, tied embeddings."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import LATENT_ATTENTION, llama_layout

__all__ = ["FAMILIES"]

FAMILIES = (
    like(
        LLAMA,
        "minicpm3",
        defaults={
            "rank": 256, "q_rank": 768, "nope_dim": 64, "mla_rope_dim": 32, "v_head_dim": 64, "tied": True,
            "norm_eps": 1e-5,
        },  # fmt: skip
        latent=True,
        layout=llama_layout(attention=LATENT_ATTENTION),
    ),
)
