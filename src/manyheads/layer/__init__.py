"""Attention layers made of `ops`: one for every member of the family, its caches, and the drop-in for torch's module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.layer.attention import Attention
    from manyheads.layer.multihead import MultiheadAttention
    from manyheads.layer.textbook import mha

__all__ = ["Attention", "MultiheadAttention", "mha"]

__getattr__, __dir__ = lazy(__name__, {"Attention": "attention", "MultiheadAttention": "multihead", "mha": "textbook"})
