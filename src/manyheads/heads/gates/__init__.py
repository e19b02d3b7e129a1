"""Gates on heads, trained until most are shut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.gates import QUADRANTS, Convergence, Gates, gated, quadrants, train_gates

__all__ = ["QUADRANTS", "Convergence", "Gates", "gated", "quadrants", "train_gates"]

_HOMES = {
    "Convergence": "train",
    "Gates": "train",
    "QUADRANTS": "train",
    "gated": "train",
    "quadrants": "train",
    "train_gates": "train",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
