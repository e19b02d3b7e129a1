"""Attention layers made of `ops`: one for every member of the family, its caches, and the drop-in for torch's module."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.layer.attention import Attention
    from manyheads.layer.multihead import MultiheadAttention
    from manyheads.layer.textbook import mha

_HOME = {"Attention": "attention", "MultiheadAttention": "multihead", "mha": "textbook"}

__all__ = ["Attention", "MultiheadAttention", "mha"]


def __getattr__(name: str) -> Any:
    """Load the module that holds `name` when it is first asked for (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
