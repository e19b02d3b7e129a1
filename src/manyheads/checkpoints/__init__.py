"""Reading models without torch: what MODEL is, its configuration, and the headers of its weight files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyheads.checkpoints.config import ModelConfig, read_config
    from manyheads.checkpoints.reading import Checkpoint, open_model, read

_HOME = {
    "Checkpoint": "reading",
    "ModelConfig": "config",
    "open_model": "reading",
    "read": "reading",
    "read_config": "config",
}

__all__ = ["Checkpoint", "ModelConfig", "open_model", "read", "read_config"]


def __getattr__(name: str) -> Any:
    """Load the module that holds `name` when it is first asked for (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
