"""From what a user named to a running model: weights, tokenizer, text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.models.load.model import Loaded, load

__all__ = ["Loaded", "load"]

__getattr__, __dir__ = lazy(__name__, {"Loaded": "model", "load": "model"})
