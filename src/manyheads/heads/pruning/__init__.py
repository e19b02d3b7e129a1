"""Heads removed for real: planned, chosen, cut out of the weights, exported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.pruning.choose import choose_heads, compare_with_init
    from manyheads.heads.pruning.export import export_pruned, load_pruned
    from manyheads.heads.pruning.exported import Exported
    from manyheads.heads.pruning.loss_change import LossChange, measure_loss_change
    from manyheads.heads.pruning.plan import Plan
    from manyheads.heads.pruning.remove import Pruned, mask, prune

__all__ = [
    "Exported", "LossChange", "Plan", "Pruned", "choose_heads", "compare_with_init",
    "export_pruned", "load_pruned", "mask", "measure_loss_change", "prune",
]  # fmt: skip

_HOMES = {
    "choose": ("choose_heads", "compare_with_init"),
    "export": ("export_pruned", "load_pruned"),
    "exported": ("Exported",),
    "loss_change": ("LossChange", "measure_loss_change"),
    "plan": ("Plan",),
    "remove": ("Pruned", "mask", "prune"),
}

__getattr__, __dir__ = lazy(__name__, {name: home for home, names in _HOMES.items() for name in names})
