"""Command R and R7B: one LayerNorm without shift, attention and MLP side by side, interleaved rotation, tied head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import FULL
from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    GATED_MLP,
    HEAD,
    LAYER,
    LLAMA_ATTENTION,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
    norm,
)

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

_LAYOUT = (
    *EMBED,
    *LLAMA_ATTENTION,
    *norm("model.layers.{i}.self_attn.q_norm", LAYER + "self.q_norm", "h q"),
    *norm("model.layers.{i}.self_attn.k_norm", LAYER + "self.k_norm", "k q"),
    *GATED_MLP,
    *norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
    *FINAL_NORM,
    *HEAD,
)


def _unrotated_full_layers(fields: Fields, draft: Draft) -> None:
    """Command R7B rotates in its windowed layers only, which no field says."""
    draft.unrotated = frozenset(index for index, kind in enumerate(draft.kinds) if kind == FULL)


FAMILIES = (
    Family(
        name="cohere",
        model_types=("cohere",),
        defaults={"tied": True, "rope_theta": 5e5},
        norm="layer",
        norm_places=("pre_attention",),
        parallel=True,
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm_field="each_head",
        rope_layout="interleaved",
        layout=_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
    Family(
        name="cohere2",
        model_types=("cohere2",),
        defaults={"tied": True, "window": 4096},
        norm="layer",
        norm_places=("pre_attention",),
        parallel=True,
        bias_fields=(("attention_bias", "qkvo"),),
        rope_layout="interleaved",
        windows="pattern",
        window_period=4,
        layout=_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        finish=_unrotated_full_layers,
    ),
)
