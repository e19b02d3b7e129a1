"""Smaller models of the same kind: fewer key/value heads, and what that loses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.convert.calibration_text import Calibration, calibration_texts, split_blocks
    from manyheads.convert.regroup import Regrouped, regroup
    from manyheads.convert.regrouped_weights import RegroupedWeights, put_into_model

__all__ = [
    "Calibration", "Regrouped", "RegroupedWeights", "calibration_texts", "put_into_model", "regroup", "split_blocks",
]  # fmt: skip

_HOMES = {
    "calibration_text": ("Calibration", "calibration_texts", "split_blocks"),
    "regroup": ("Regrouped", "regroup"),
    "regrouped_weights": ("RegroupedWeights", "put_into_model"),
}

__getattr__, __dir__ = lazy(__name__, {name: home for home, names in _HOMES.items() for name in names})
