"""Where every head looks: one streaming pass over texts, with the control that a head without preferences gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.heads.statistics.measure import MASSES, HeadStatistics, KeySet, Recorder, head_statistics
    from manyheads.heads.statistics.value_weighting import norm_weighted, value_norms

__all__ = ["MASSES", "HeadStatistics", "KeySet", "Recorder", "head_statistics", "norm_weighted", "value_norms"]

_HOMES = {
    "measure": ("MASSES", "HeadStatistics", "KeySet", "Recorder", "head_statistics"),
    "value_weighting": ("norm_weighted", "value_norms"),
}

__getattr__, __dir__ = lazy(__name__, {name: home for home, names in _HOMES.items() for name in names})
