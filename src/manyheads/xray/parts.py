"""What rooms above this one add to an x-ray while the model is loaded: a part of the object, and its tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manyheads.models.load.model import Loaded
from manyheads.report.value import Table
from manyheads.spec.stack import StackSpec

__all__ = ["Part", "Running", "Section"]


@dataclass(frozen=True)
class Running:
    """The model that is x-rayed and what it reads.

    ids        tokens of the text, or random ones where `of_text` is False; `no_text`: why
    no_score   why left-to-right prediction cannot be scored, "" where it can
    text       what `ids` are the first tokens of
    limit      the most tokens that the model reads at once, 0 for not said
    """

    loaded: Loaded
    stack: StackSpec
    ids: list[int]
    of_text: bool
    no_text: str
    no_score: str
    text: str
    limit: int
    bos: bool
    seed: int


@dataclass(frozen=True)
class Part:
    """One key of the x-ray's object, and the tables that are made of it alone."""

    key: str
    data: dict[str, Any]
    tables: tuple[Table, ...]


# Is told what is being done; raises ManyheadsError only where the whole x-ray has to fail.
Section = Callable[[Running, Callable[[str], None]], Part]
