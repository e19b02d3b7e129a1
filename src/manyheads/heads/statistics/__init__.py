"""Where every head looks: one streaming pass over texts, with the control that a head without preferences gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.statistics.measure import MASSES, HeadStatistics, KeySet, Recorder, head_statistics
    from manyheads.heads.statistics.value_weighting import norm_weighted, value_norms

__all__ = ["MASSES", "HeadStatistics", "KeySet", "Recorder", "head_statistics", "norm_weighted", "value_norms"]

_HOMES = {
    "HeadStatistics": "measure",
    "KeySet": "measure",
    "MASSES": "measure",
    "Recorder": "measure",
    "head_statistics": "measure",
    "norm_weighted": "value_weighting",
    "value_norms": "value_weighting",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
