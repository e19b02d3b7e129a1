"""StableLM: a Llama with LayerNorms and a quarter of each head rotated; in its 12B a norm for each head, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import LAYER, LLAMA_ATTENTION, llama_layout

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """Side by side, attention and MLP share the first norm; the norms of the heads have no shift."""
    if fields.flag("use_parallel_residual"):
        draft.parallel, draft.norm_places = True, ("pre_attention",)
    if draft.qk_norm is not None:
        draft.qk_norm = replace(draft.qk_norm, norm=replace(draft.qk_norm.norm, shift=False))


# A norm of its own for every head.
_HEADS = "model.layers.{i}.self_attn.K_layernorm.norms.{x}.weight"

FAMILIES = (
    like(
        LLAMA,
        "stablelm",
        rope_share=("partial_rotary_factor",),
        derived=("head_dim",),
        defaults={"rope_fraction": 0.25},
        norm="layer",
        shift=True,
        bias_fields=(("qkv_bias", "qkv"),),
        qk_norm_field="each_head",
        layout=llama_layout(
            attention=(
                *LLAMA_ATTENTION,
                *(
                    Stored(_HEADS.replace("K", which), ((LAYER + f"self.{which}_norm.weight", "q"),), each=letter)
                    for which, letter in (("q", "h"), ("k", "k"))
                ),
            )
        ),
        finish=_finish,
    ),
)
