"""SmolLM 3: a Llama of which every fourth layer is not rotated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.checkpoints.draft import FULL, SLIDING
from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like

if TYPE_CHECKING:
    from manyheads.checkpoints.draft import Draft
    from manyheads.checkpoints.fields import Fields

__all__ = ["FAMILIES"]


def _finish(fields: Fields, draft: Draft) -> None:
    """The interval where nothing is said; a window, where one is switched on, is for the layers without rotation."""
    if not fields.has("no_rope_layers") and not fields.has("no_rope_interval"):
        draft.unrotated = frozenset(range(3, draft.layers, 4))
    if draft.window and not fields.has("layer_types"):
        draft.kinds = [SLIDING if index in draft.unrotated else FULL for index in range(draft.layers)]


FAMILIES = (
    like(
        LLAMA,
        "smollm3",
        defaults={"kv_heads": 4, "tied": True, "rope_theta": 2e6, "use_window": False},
        windows="all",
        finish=_finish,
    ),
)
