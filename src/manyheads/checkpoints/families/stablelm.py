"""StableLM: a Llama with LayerNorms and a quarter of each head rotated; in its 12B a norm for each head, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    GATED_MLP,
    HEAD,
    LAYER,
    LLAMA_ATTENTION,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
)

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


FAMILIES = (
    Family(
        name="stablelm",
        model_types=("stablelm",),
        rope_share=("partial_rotary_factor",),
        derived=("head_dim",),
        defaults={"rope_fraction": 0.25},
        norm="layer",
        shift=True,
        bias_fields=(("qkv_bias", "qkv"),),
        qk_norm_field="each_head",
        layout=(
            *EMBED,
            *LLAMA_ATTENTION,
            Stored("model.layers.{i}.self_attn.q_layernorm.norms.{x}.weight", ((LAYER + "self.q_norm.weight", "q"),), each="h"),
            Stored("model.layers.{i}.self_attn.k_layernorm.norms.{x}.weight", ((LAYER + "self.k_norm.weight", "q"),), each="k"),
            *GATED_MLP,
            *LLAMA_NORMS,
            *FINAL_NORM,
            *HEAD,
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        finish=_finish,
    ),
)
