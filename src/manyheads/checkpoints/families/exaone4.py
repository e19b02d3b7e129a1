"""EXAONE 4: norms on outputs and heads; in the 32B three layers in four see a window, and only those are rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import FULL
from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import LLAMA_ATTENTION, NORMS_PER_HEAD, OUTPUT_NORMS, llama_layout

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """Where there is a window, the layers that see everything are not rotated, which no field says."""
    if draft.window:
        draft.unrotated = frozenset(index for index, kind in enumerate(draft.kinds) if kind == FULL)


FAMILIES = (
    like(
        LLAMA,
        "exaone4",
        defaults={"kv_heads": 32, "norm_eps": 1e-5, "window": 4096},
        norm_places=("out_attention", "out_mlp"),
        qk_norm="head",
        windows="pattern",
        window_period=4,
        bias_fields=(),
        layout=llama_layout(attention=(*LLAMA_ATTENTION, *NORMS_PER_HEAD), norms=OUTPUT_NORMS),
        passed_over=("qk_norm",),  # published, and not read: the norms are always there
        finish=_finish,
    ),
)
