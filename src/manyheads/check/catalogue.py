"""Every case, in the order in which they are run."""

from __future__ import annotations

from collections import Counter

from manyheads.check.case import Case
from manyheads.check.suites import (
    basics,
    cache,
    causal,
    dtypes,
    extras,
    grouped,
    manners,
    masks,
    onnx,
    projections,
    window,
)

__all__ = ["CASES", "by_name"]

CASES: tuple[Case, ...] = (
    *basics.CASES,
    *projections.CASES,
    *masks.CASES,
    *causal.CASES,
    *window.CASES,
    *grouped.CASES,
    *extras.CASES,
    *cache.CASES,
    *manners.CASES,
    *dtypes.CASES,
    *onnx.CASES,
)

assert max(Counter(case.name for case in CASES).values()) == 1


def by_name() -> dict[str, Case]:
    """name -> case."""
    return {case.name: case for case in CASES}
