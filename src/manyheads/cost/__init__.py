"""What attention costs: weights, MACs, bytes, time; closed forms that run on ints, arrays and symbols."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.cost.pricing import price

__all__ = ["price"]

__getattr__, __dir__ = lazy(__name__, {"price": "pricing"})
