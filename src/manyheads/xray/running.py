"""What each part of an x-ray looks into.

A part is a function of a `Running` to a record (`xray.heads`), a field of `XRay`, and tables that are a function of that record.
"""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.models.load.model import Loaded
from manyheads.spec.stack import StackSpec

__all__ = ["Running"]


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
