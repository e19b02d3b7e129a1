"""Reading models without torch: what MODEL is, its configuration, and the headers of its weight files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.checkpoints.config import ModelConfig, read_config
    from manyheads.checkpoints.reading import Checkpoint, open_model, read

__all__ = ["Checkpoint", "ModelConfig", "open_model", "read", "read_config"]

__getattr__, __dir__ = lazy(
    __name__,
    {
        "Checkpoint": "reading",
        "ModelConfig": "config",
        "open_model": "reading",
        "read": "reading",
        "read_config": "config",
    },
)
