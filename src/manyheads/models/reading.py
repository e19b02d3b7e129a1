"""The text that a model is measured on: the one shipped with the package, or the user's own."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib import resources

from manyheads.errors import ManyheadsError

__all__ = ["SHIPPED", "Reading", "read_text", "shipped_text"]

SHIPPED = "reading-1.txt"
"""A story and four explanations, written for this project. A changed text gets a new number, so figures stay comparable."""

_MOST_BYTES = 1 << 28
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
    if not path or "\0" in path:
        raise ManyheadsError(f"--text {path!r} is no file name; valid: {_KIND}")
    if os.path.isdir(path):
        raise ManyheadsError(f"--text {path}: a folder; valid: {_KIND}")
    try:
        # A pipe or a device would be read without end: what is read is limited, not what the file says of itself.
        with open(path, "rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ManyheadsError(f"--text {path}: {error.strerror or error}; valid: {_KIND}") from None
    if len(data) > _MOST_BYTES:
        raise ManyheadsError(f"--text {path}: larger than {_MOST_BYTES:,} bytes; a few thousand words are enough")
    return Reading(os.path.basename(path), _decoded(data, path), hashlib.sha256(data).hexdigest(), shipped=False)


def _decoded(data: bytes, path: str) -> str:
    if not data.strip():
        raise ManyheadsError(f"--text {path}: empty; valid: {_KIND} of at least two tokens")
    if b"\0" in data:
        raise ManyheadsError(f"--text {path}: holds zero bytes, so it is no text; valid: {_KIND}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ManyheadsError(
            f"--text {path}: byte {data[error.start]:#04x} at offset {error.start:,} is no UTF-8; valid: {_KIND}"
        ) from None
