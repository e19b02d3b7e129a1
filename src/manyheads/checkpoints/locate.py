"""What the one positional argument MODEL is: something on this disk, a sketch in words, a known name, or a hub id.

The order is fixed, so that nothing is ever tried twice: what exists here is never looked up elsewhere, and what looks
like a path but does not exist is an error at once and never a hub id.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Literal

from manyheads.checkpoints.demo import DEMO, demo_file
from manyheads.checkpoints.files import appearance, open_regular
from manyheads.errors import CheckpointError
from manyheads.quoting import shown, shown_path

__all__ = ["Kind", "Located", "locate"]

Kind = Literal["folder", "config", "safetensors", "gguf", "spec", "census", "hub"]

_CONFIG_NAME = "config.json"
_INDEX_ENDING = ".safetensors.index.json"
_ENDINGS: dict[str, Kind] = {".json": "config", ".safetensors": "safetensors", ".gguf": "gguf"}
_PATH_STARTS = ("/", "./", "../", "~", ".\\", "..\\")
_ID_MARKS = frozenset("-_.")
_LONGEST_ID = 96
_ACCEPTED = (
    "a folder with config.json, a config.json, a .safetensors or .gguf file, a spec such as"
    ' "gqa(4096, 32/8x128) x 32", a name of `manyheads models`, a hub id org/name, or demo'
)


@dataclass(frozen=True)
class Located:
    """What MODEL is.

    kind   folder | config | safetensors | gguf: `text` is a path that exists, ``~`` expanded
           spec: `text` is a spec in words;  census: a name that the census knows;  hub: org/name
    asked  what was typed
    names  the files in the model's folder, () where they play no part: listed once, for all who ask what is there
    """

    kind: Kind
    text: str
    asked: str = field(default="", compare=False)
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)

    @property
    def folder(self) -> str:
        """The folder in which the files lie; "" where there are none on this disk."""
        if self.kind in ("spec", "census", "hub"):
            return ""
        return self.text if self.kind == "folder" else os.path.dirname(self.text) or os.curdir


def locate(text: str) -> Located:
    """Decide what `text` names. Reads at most a directory listing and the first bytes of a file; never the network.

    Raises CheckpointError, one line with what would be accepted, when it names nothing.
    """
    if not text.strip():
        raise CheckpointError(f"no model was named; expected {_ACCEPTED}")
    return replace(_located(text), asked=text)


def _located(text: str) -> Located:
    path = os.path.expanduser(text)
    if os.path.lexists(path):
        return _locate_folder(path) if os.path.isdir(path) else _locate_file(path)
    if text.startswith(_PATH_STARTS) or "\\" in text or os.path.splitext(text)[1].lower() in _ENDINGS:
        raise CheckpointError(f"{shown_path(text)}: no such file or folder; expected {_ACCEPTED}")
    if "(" in text:
        return Located("spec", text)
    if text == DEMO:
        return Located("gguf", demo_file())
    from manyheads.facts.census import find, nearest

    if find(text) is not None:
        return Located("census", text)
    if _is_hub_id(text):
        return Located("hub", text)
    near = nearest(text)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    raise CheckpointError(f"{shown(text)} is not a file here nor a known model; {hint}expected {_ACCEPTED}")


def _is_hub_id(text: str) -> bool:
    """org/name as the hub allows it: letters, digits, - _ . with no two of "-" or "." in a row and none at the ends."""
    parts = text.split("/")
    return len(parts) == 2 and all(
        0 < len(part) <= _LONGEST_ID
        and part.isascii()
        and all(letter.isalnum() or letter in _ID_MARKS for letter in part)
        and part[0] not in "-."
        and part[-1] not in "-."
        and "--" not in part
        and ".." not in part
        for part in parts
    )


def _locate_folder(path: str) -> Located:
    name = shown_path(path)
    try:
        inside = sorted(os.listdir(path))
    except OSError as error:
        raise CheckpointError(f"{name}: the folder cannot be listed ({error.strerror})") from None
    if _CONFIG_NAME in inside or any(entry.endswith((".safetensors", _INDEX_ENDING)) for entry in inside):
        return Located("folder", path, names=tuple(inside))
    ggufs = [entry for entry in inside if entry.endswith(".gguf")]
    if ggufs:
        from manyheads.checkpoints.gguf_parts import first_part

        model = first_part(ggufs)
        if model is not None:
            return Located("gguf", os.path.join(path, model))
    listed = ", ".join(map(shown, (ggufs or inside)[:5])) + (", ..." if len(ggufs or inside) > 5 else "")
    if ggufs:
        raise CheckpointError(f"{name}: holds {len(ggufs)} .gguf files ({listed}); name one of them")
    raise CheckpointError(
        f"{name}: a folder without {_CONFIG_NAME}, .safetensors or .gguf: it"
        f" {f'contains {len(inside)} entries ({listed})' if inside else 'is empty'}"
    )


def _locate_file(path: str) -> Located:
    """The kind by what the file contains; by its ending only where the content says nothing, for the reader's error."""
    file, _ = open_regular(path, wanted=_ACCEPTED)
    with file:
        try:
            start = file.read(64)
        except OSError as error:
            raise CheckpointError(f"{shown_path(path)}: cannot be read ({error.strerror})") from None
    kind = _kind_of_content(start) or _ENDINGS.get(os.path.splitext(path)[1].lower())
    if kind is None:
        raise CheckpointError(f"{shown_path(path)}: looks like {appearance(start)}; expected {_ACCEPTED}")
    if kind == "gguf":
        return Located(kind, path)
    found = (
        Located("folder", os.path.dirname(path) or os.curdir) if path.endswith(_INDEX_ENDING) else Located(kind, path)
    )
    try:
        return replace(found, names=tuple(sorted(os.listdir(found.folder))))
    except OSError:  # the file itself can be read
        return found


def _kind_of_content(start: bytes) -> Kind | None:
    if start.startswith(b"GGUF"):
        return "gguf"
    if start[8:9] == b"{" and start[4:8] == bytes(4):  # a header of less than 4 GiB; JSON text holds no zero bytes
        return "safetensors"
    if start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        return "config"
    return None
