"""The text that a model is measured on: the one shipped with the package, or the user's own."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib import resources

from manyheads.checkpoints.files import read_small
from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.quoting import shown_path

__all__ = ["SHIPPED", "Reading", "read_text", "shipped_text"]

SHIPPED = "reading-1.txt"
"""A story and four explanations, written for this project. A changed text gets a new number, so figures stay comparable."""

_MOST_BYTES = 1 << 26  # a few thousand words are enough
_KIND = "a text file in UTF-8"


@dataclass(frozen=True)
class Reading:
    """A text. `name`: the file's name, or SHIPPED; `sha256`: of the file's bytes; `shipped`: whether it is ours."""

    name: str
    text: str
    sha256: str
    shipped: bool


def shipped_text() -> Reading:
    """The text that comes with the package: about 6,000 tokens, half story, half explanation."""
    data = resources.files("manyheads").joinpath("data", SHIPPED).read_bytes()
    return Reading(SHIPPED, data.decode("utf-8"), hashlib.sha256(data).hexdigest(), shipped=True)


def read_text(path: str) -> Reading:
    """The text in a file of the user's.

    Raises ManyheadsError, one line, for a file that is missing, no file, unreadable, too large, empty or no UTF-8 text.
    """
    try:
        data = read_small(path, wanted=_KIND, most=_MOST_BYTES)
    except CheckpointError as error:
        raise ManyheadsError(str(error)) from None
    return Reading(
        os.path.basename(path),
        _decoded(data, shown_path(path)),
        hashlib.sha256(data).hexdigest(),
        shipped=False,
    )


def _decoded(data: bytes, where: str) -> str:
    if not data.strip():
        raise ManyheadsError(f"{where}: empty; valid: {_KIND} of at least two tokens")
    if b"\0" in data:
        raise ManyheadsError(f"{where}: holds zero bytes, so it is no text; valid: {_KIND}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManyheadsError(
            f"{where}: byte {data[error.start]:#04x} at offset {error.start:,} is no UTF-8; valid: {_KIND}"
        ) from None
