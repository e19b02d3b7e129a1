"""How much each head matters: first-order importance, ablation, and what the loss rises by."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.effects.ablation import UNITS, ablate_heads, ablated, removal_curve
    from manyheads.heads.effects.ablation_run import Removal
    from manyheads.heads.effects.budgeted_ablation import FDR, SECONDS, Budget, Effects, Texts, head_effects
    from manyheads.heads.effects.first_position import AtFirst, first_position_effects
    from manyheads.heads.effects.importance import FIRST_ORDER, asking, frozen, head_importance
    from manyheads.heads.effects.importance_scores import Importance, rank_correlation, spearman
    from manyheads.heads.effects.metrics import Metric, measured, next_token_loss
    from manyheads.heads.effects.objective import DRIFT, Objective, reads_with_decoder, text_objective
    from manyheads.heads.effects.removable import Removable, count_removable
    from manyheads.heads.effects.replaced_outputs import METHODS

__all__ = [
    "DRIFT", "FDR", "FIRST_ORDER", "METHODS", "SECONDS", "UNITS", "AtFirst", "Budget", "Effects", "Importance",
    "Metric", "Objective", "Removable", "Removal", "Texts", "ablate_heads", "ablated", "asking", "count_removable",
    "first_position_effects", "frozen", "head_effects", "head_importance", "measured", "next_token_loss",
    "rank_correlation", "reads_with_decoder", "removal_curve", "spearman", "text_objective",
]  # fmt: skip

_HOMES = {
    "ablation": ("UNITS", "ablate_heads", "ablated", "removal_curve"),
    "ablation_run": ("Removal",),
    "budgeted_ablation": ("FDR", "SECONDS", "Budget", "Effects", "Texts", "head_effects"),
    "first_position": ("AtFirst", "first_position_effects"),
    "importance": ("FIRST_ORDER", "asking", "frozen", "head_importance"),
    "importance_scores": ("Importance", "rank_correlation", "spearman"),
    "metrics": ("Metric", "measured", "next_token_loss"),
    "objective": ("DRIFT", "Objective", "reads_with_decoder", "text_objective"),
    "removable": ("Removable", "count_removable"),
    "replaced_outputs": ("METHODS",),
}

__getattr__, __dir__ = lazy(__name__, {name: home for home, names in _HOMES.items() for name in names})
