"""GPT-J: one norm, attention and MLP side by side, the first `rotary_dim` elements of each head rotated in pairs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.gpt2 import GPT
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import HEAD, LAYER, norm, plain_mlp, projections

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """The head has a bias, which no field says."""
    draft.head_bias = True


FAMILIES = (
    like(
        GPT,
        "gptj",
        rope_share=("rotary_dim",),
        spellings={"context": ("n_positions",)},
        defaults={"context": 2048, "rope_dim": 64, "norm_eps": 1e-5},
        norm_places=("pre_attention",),
        parallel=True,
        bias="",
        positions="rope",
        rope_layout="interleaved",
        layout=(
            Stored("transformer.wte.weight", (("tokens", "l m"),)),
            *projections(LAYER + "self", *(f"transformer.h.{{i}}.attn.{part}_proj" for part in ("q", "k", "v", "out"))),
            *plain_mlp(LAYER, "transformer.h.{i}.mlp.fc_in", "transformer.h.{i}.mlp.fc_out"),
            *norm("transformer.h.{i}.ln_1", LAYER + "pre_attention_norm"),
            *norm("transformer.ln_f", "decoder.final_norm"),
            *HEAD,
        ),
        ignored=(r"\.attn\.(bias|masked_bias|embed_positions)$",),
        passed_over=("scale_attn_weights", "rotary"),  # not read by transformers' GPT-J
        finish=_finish,
    ),
)
