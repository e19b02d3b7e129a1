"""DeepSeek: the first mixtures with a Llama's attention, then versions 2 and 3 with multi-head latent attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import (
    EMBED,
    EXPERTS,
    FINAL_NORM,
    GATED_MLP,
    HEAD,
    LATENT_ATTENTION,
    LLAMA_LAYOUT,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
    SHARED_EXPERTS,
)

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_LAYOUT = (
    *EMBED,
    *LATENT_ATTENTION,
    *GATED_MLP,
    *EXPERTS,
    # Version 3's correction of the router, a buffer.
    Stored("model.layers.{i}.mlp.gate.e_score_correction_bias", (("decoder.layers.{i}.mlp.router.bias", "x"),)),
    *SHARED_EXPERTS,
    *LLAMA_NORMS,
    *FINAL_NORM,
    *HEAD,
)


def _predictors(fields: Fields, draft: Draft) -> None:
    """The extra layer that predicts a second token is stored beside the model and not part of it."""
    extra = fields.optional_size("num_nextn_predict_layers", least=0)
    if extra:
        draft.notes.append(f"{extra} multi-token prediction layer (stored apart) is left out")


FAMILIES = (
    Family(
        name="deepseek",
        model_types=("deepseek",),
        bias_fields=(("attention_bias", "qkvo"),),
        layout=(*LLAMA_LAYOUT, *EXPERTS, *SHARED_EXPERTS),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
    Family(
        name="deepseek_v2",
        model_types=("deepseek_v2",),
        defaults={
            "rank": 512, "q_rank": 1536, "nope_dim": 128, "mla_rope_dim": 64, "v_head_dim": 128, "experts": 64,
            "shared_experts": 2, "expert_width": 1407,
        },  # fmt: skip
        bias_fields=(("attention_bias", "qkvo"),),
        rope_layout="interleaved",
        latent=True,
        layout=_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
    Family(
        name="deepseek_v3",
        model_types=("deepseek_v3",),
        defaults={
            "rank": 512, "q_rank": 1536, "nope_dim": 128, "mla_rope_dim": 64, "v_head_dim": 128, "experts": 256,
            "active": 8, "shared_experts": 1, "expert_width": 2048, "first_dense": 3,
        },  # fmt: skip
        bias_fields=(("attention_bias", "qkvo"),),
        rope_layout="interleaved",
        latent=True,
        router_bias="buffer",
        layout=_LAYOUT,
        ignored=(*ROTARY_BUFFERS, r"^model\.layers\.{layers}\."),
        prefixes=LLAMA_PREFIXES,
        finish=_predictors,
    ),
)
