"""One way to compute a step: its name, what it supports, and how a call of it is made ready."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from manyheads.bench.room import MOST_COPIED_BYTES
from manyheads.bench.rotation import Step
from manyheads.bench.shape import Shape
from manyheads.ops.answer import Answer, No, Yes
from manyheads.report.units import gib

__all__ = ["BEST_OF_TORCH", "OURS", "STOCK", "Call", "Path", "copies", "floating"]

Call = Callable[[], Tensor]

OURS = "manyheads"
STOCK = "torch SDPA with enable_gqa"
BEST_OF_TORCH = "torch's best form"


@dataclass(frozen=True, eq=False)
class Path:
    """One way. `family`: what it is shown as where only the fastest of several forms counts; `name` is its own."""

    name: str
    family: str
    threads: int
    supports: Callable[[Shape], Answer]
    prepare: Callable[[Step], Call]


def floating(shape: Shape) -> Answer:
    """No where the cache is int8."""
    return No("it has no int8 cache") if shape.dtype == "int8" else Yes()


def copies(size_bytes: int) -> Answer:
    """Whether a path may copy so many bytes of a cache in every step."""
    if size_bytes <= MOST_COPIED_BYTES:
        return Yes()
    return No(
        f"it would copy {gib(size_bytes)} of the cache in every step, more than the {gib(MOST_COPIED_BYTES)} allowed"
    )
