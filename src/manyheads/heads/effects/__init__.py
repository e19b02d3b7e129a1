"""How much each head matters: first-order importance, ablation, and what the loss rises by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.effects.ablation import UNITS, ablate_heads, ablated, removal_curve
    from manyheads.heads.effects.confident import FDR, SECONDS, Budget, Effects, Texts, head_effects
    from manyheads.heads.effects.first_position import AtFirst, first_position_effects
    from manyheads.heads.effects.importance import FIRST_ORDER, asking, frozen, head_importance
    from manyheads.heads.effects.metrics import Batch, Metric, as_batches, measured, metric_of, next_token_loss
    from manyheads.heads.effects.objective import DRIFT, Objective, reads_with_decoder, text_objective
    from manyheads.heads.effects.removable import Removable, count_removable
    from manyheads.heads.effects.removing import Removal
    from manyheads.heads.effects.replacing import METHODS
    from manyheads.heads.effects.scores import Importance, rank_correlation, spearman

__all__ = [
    "DRIFT",
    "FDR",
    "FIRST_ORDER",
    "METHODS",
    "SECONDS",
    "UNITS",
    "AtFirst",
    "Batch",
    "Budget",
    "Effects",
    "Importance",
    "Metric",
    "Objective",
    "Removable",
    "Removal",
    "Texts",
    "ablate_heads",
    "ablated",
    "as_batches",
    "asking",
    "count_removable",
    "first_position_effects",
    "frozen",
    "head_effects",
    "head_importance",
    "measured",
    "metric_of",
    "next_token_loss",
    "rank_correlation",
    "reads_with_decoder",
    "removal_curve",
    "spearman",
    "text_objective",
]

_HOMES = {
    "AtFirst": "first_position",
    "Batch": "metrics",
    "Budget": "confident",
    "DRIFT": "objective",
    "Effects": "confident",
    "FDR": "confident",
    "FIRST_ORDER": "importance",
    "Importance": "scores",
    "METHODS": "replacing",
    "Metric": "metrics",
    "Objective": "objective",
    "Removable": "removable",
    "Removal": "removing",
    "SECONDS": "confident",
    "Texts": "confident",
    "UNITS": "ablation",
    "ablate_heads": "ablation",
    "ablated": "ablation",
    "as_batches": "metrics",
    "asking": "importance",
    "count_removable": "removable",
    "first_position_effects": "first_position",
    "frozen": "importance",
    "head_effects": "confident",
    "head_importance": "importance",
    "measured": "metrics",
    "metric_of": "metrics",
    "next_token_loss": "metrics",
    "rank_correlation": "scores",
    "reads_with_decoder": "objective",
    "removal_curve": "ablation",
    "spearman": "scores",
    "text_objective": "objective",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
