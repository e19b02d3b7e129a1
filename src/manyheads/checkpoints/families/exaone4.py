"""EXAONE 4: norms on outputs and heads; in the 32B three layers in four see a window, and only those are rotated."""

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
    NORMS_PER_HEAD,
    ROTARY_BUFFERS,
    norm,
)

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """Where there is a window, the layers that see everything are not rotated, which no field says."""
    fields.raw("qk_norm")  # published, and not read: the norms are always there
    if draft.window:
        draft.unrotated = frozenset(index for index, kind in enumerate(draft.kinds) if kind == FULL)


FAMILIES = (
    Family(
        name="exaone4",
        model_types=("exaone4",),
        defaults={"kv_heads": 32, "norm_eps": 1e-5, "window": 4096},
        norm_places=("out_attention", "out_mlp"),
        qk_norm="head",
        windows="pattern",
        window_period=4,
        layout=(
            *EMBED,
            *LLAMA_ATTENTION,
            *NORMS_PER_HEAD,
            *GATED_MLP,
            *norm("model.layers.{i}.post_attention_layernorm", LAYER + "out_attention_norm"),
            *norm("model.layers.{i}.post_feedforward_layernorm", LAYER + "out_mlp_norm"),
            *FINAL_NORM,
            *HEAD,
        ),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        finish=_finish,
    ),
)
