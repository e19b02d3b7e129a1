"""Sweeps: long lists of inputs of one kind. Each run takes every so-manyth of them; `make test-sweeps` takes them all.

What one input can show, another of the list shows too; the whole list is for changes of what it sweeps over.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TypeVar

__all__ = ["WHOLE", "some"]

T = TypeVar("T")

WHOLE = bool(os.environ.get("MANYHEADS_SWEEPS"))


def some(items: Iterable[T], every: int) -> list[T]:
    """The first of `items` and every `every`th after it; all of them where the sweeps are asked for whole."""
    return list(items)[:: 1 if WHOLE else every]
