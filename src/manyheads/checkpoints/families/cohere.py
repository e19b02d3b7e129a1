"""Command R and R7B: one LayerNorm without shift, attention and MLP side by side, interleaved rotation, tied head."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import FULL
from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import LAYER, LLAMA_ATTENTION, llama_layout, norm

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]

def _unrotated_full_layers(fields: Fields, draft: Draft) -> None:
    """Command R7B rotates in its windowed layers only, which no field says."""
    draft.unrotated = frozenset(index for index, kind in enumerate(draft.kinds) if kind == FULL)


_COHERE = like(
    LLAMA,
    "cohere",
    defaults={"tied": True, "rope_theta": 5e5},
    norm="layer",
    norm_places=("pre_attention",),
    parallel=True,
    qk_norm_field="each_head",
    rope_layout="interleaved",
    layout=llama_layout(
        attention=(
            *LLAMA_ATTENTION,
            *norm("model.layers.{i}.self_attn.q_norm", LAYER + "self.q_norm", "h q"),
            *norm("model.layers.{i}.self_attn.k_norm", LAYER + "self.k_norm", "k q"),
        ),
        norms=norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
    ),
)

FAMILIES = (
    _COHERE,
    like(
        _COHERE,
        "cohere2",
        defaults={"tied": True, "window": 4096},
        qk_norm_field="",
        windows="pattern",
        window_period=4,
        finish=_unrotated_full_layers,
    ),
)
