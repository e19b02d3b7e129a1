"""Where the weights of a model lie that another is made from, and what it is called there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from manyheads.checkpoints.locate import Located
from manyheads.models.load.model import Loaded
from manyheads.models.store.output_folder import folder_of
from manyheads.quoting import shown_path

__all__ = ["name_of", "weights_folder"]

Say = Callable[[str], None]


def name_of(model: Located) -> str:
    """A model as its user knows it, wherever its files lie: a hub id, or the name of a folder or file."""
    if model.kind == "hub":
        return model.text
    path = Path(os.path.abspath(folder_of(model) or model.text))
    return shown_path(path.stem if model.kind == "gguf" else path.name)


def weights_folder(located: Located, loaded: Loaded, scratch: str, say: Say) -> str:
    """Where weights and configuration lie that can be written on: of a GGUF file, its dequantised copy."""
    if own := folder_of(located):
        return own
    if located.kind == "hub":
        return loaded.source
    if loaded.kept:
        return loaded.kept
    say("saving the dequantised model for a moment")
    loaded.model.save_pretrained(scratch)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(scratch)
    return scratch
