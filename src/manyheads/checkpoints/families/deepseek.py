"""DeepSeek: the first mixtures with a Llama's attention, then versions 2 and 3 with multi-head latent attention."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import (
    EXPERTS,
    GATED_MLP,
    LATENT_ATTENTION,
    LLAMA_LAYOUT,
    ROTARY_BUFFERS,
    SHARED_EXPERTS,
    llama_layout,
)

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_V2 = like(
    LLAMA,
    "deepseek_v2",
    defaults={
        "rank": 512, "q_rank": 1536, "nope_dim": 128, "mla_rope_dim": 64, "v_head_dim": 128, "experts": 64,
        "shared_experts": 2, "expert_width": 1407,
    },  # fmt: skip
    rope_layout="interleaved",
    latent=True,
    layout=llama_layout(
        attention=LATENT_ATTENTION,
        mlp=(
            *GATED_MLP,
            *EXPERTS,
            # Version 3's correction of the router, a buffer.
            Stored("model.layers.{i}.mlp.gate.e_score_correction_bias", (("decoder.layers.{i}.mlp.router.bias", "x"),)),
            *SHARED_EXPERTS,
        ),
    ),
)


def _predictors(fields: Fields, draft: Draft) -> None:
    """The extra layer that predicts a second token is stored beside the model and not part of it."""
    extra = fields.optional_size("num_nextn_predict_layers", least=0)
    if extra:
        draft.notes.append(f"{extra} multi-token prediction layer (stored apart) is left out")


FAMILIES = (
    like(LLAMA, "deepseek", layout=(*LLAMA_LAYOUT, *EXPERTS, *SHARED_EXPERTS)),
    _V2,
    like(
        _V2,
        "deepseek_v3",
        defaults={
            **_V2.defaults, "experts": 256, "active": 8, "shared_experts": 1, "expert_width": 2048, "first_dense": 3,
        },  # fmt: skip
        router_bias="buffer",
        ignored=(*ROTARY_BUFFERS, r"^model\.layers\.{layers}\."),
        finish=_predictors,
    ),
)
