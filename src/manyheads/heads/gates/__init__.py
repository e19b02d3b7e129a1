"""Gates on heads, trained until most are shut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.gates.train import QUADRANTS, Convergence, Gates, gated, quadrants, train_gates

__all__ = ["QUADRANTS", "Convergence", "Gates", "gated", "quadrants", "train_gates"]

_HOMES = {
    "train": ("QUADRANTS", "Convergence", "Gates", "gated", "quadrants", "train_gates"),
}

__getattr__, __dir__ = lazy(__name__, {name: home for home, names in _HOMES.items() for name in names})
