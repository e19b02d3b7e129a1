"""Heads removed for real: planned, chosen, cut out of the weights, exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.pruning.choose import (
        Choice,
        budget_heads,
        choose_heads,
        closed_by_gates,
        compare_with_init,
        losses,
        reinitialised,
    )
    from manyheads.heads.pruning.export import Exported, export_pruned, load_pruned
    from manyheads.heads.pruning.loss_change import LossChange, measure_loss_change
    from manyheads.heads.pruning.output_folder import check_folder
    from manyheads.heads.pruning.plan import Plan, make_plan
    from manyheads.heads.pruning.remove import Pruned, by_stage, describe, mask, prune

__all__ = [
    "Choice",
    "Exported",
    "LossChange",
    "Plan",
    "Pruned",
    "budget_heads",
    "by_stage",
    "check_folder",
    "choose_heads",
    "closed_by_gates",
    "compare_with_init",
    "describe",
    "export_pruned",
    "load_pruned",
    "losses",
    "make_plan",
    "mask",
    "measure_loss_change",
    "prune",
    "reinitialised",
]

_HOMES = {
    "Choice": "choose",
    "Exported": "export",
    "LossChange": "loss_change",
    "Plan": "plan",
    "Pruned": "remove",
    "budget_heads": "choose",
    "by_stage": "remove",
    "check_folder": "output_folder",
    "choose_heads": "choose",
    "closed_by_gates": "choose",
    "compare_with_init": "choose",
    "describe": "remove",
    "export_pruned": "export",
    "load_pruned": "export",
    "losses": "choose",
    "make_plan": "plan",
    "mask": "remove",
    "measure_loss_change": "loss_change",
    "prune": "remove",
    "reinitialised": "choose",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
