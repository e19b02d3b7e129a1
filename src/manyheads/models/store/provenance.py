"""What is known of the model that an export was made from: its files and their hashes, its licence, its own prunings."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyheads.checkpoints.gguf_header import read_gguf
from manyheads.checkpoints.json_config import load_json_object
from manyheads.checkpoints.locate import Located
from manyheads.checkpoints.safetensors_header import read_sharded
from manyheads.errors import CheckpointError
from manyheads.models.load.dequantised import file_sha256
from manyheads.quoting import one_line, shown_path

__all__ = ["CARD_NAME", "REPORT_NAME", "SCHEMA", "Source", "front_matter", "licence_text", "source_of"]

SCHEMA = "manyheads.pruning/1"
REPORT_NAME, CARD_NAME = "pruning.json", "README.md"
_LICENCE_FILE = re.compile(r"(licen[cs]e|notice|copying|copyright|use_policy)([-_.].*)?", re.IGNORECASE)
_LICENCE_KEYS = ("license", "license_name", "license_link")
_MOST_BYTES = 1 << 20
_MOST_CHARACTERS = 200
_COMMIT = re.compile("[0-9a-f]{40}")
# What is kept of an earlier pruning; the rest is what it left behind, which its successor tells anew.
_KEPT = ("model", "form", "removed_now", "chosen", "losses", "source", "versions")


@dataclass(frozen=True)
class Source:
    """The model that heads are removed from.

    name          as its user knows it
    original      the model whose numbers its heads have: its own name, or that before its first pruning; "" where it was
                  pruned and nothing says from what
    revision      the commit of a model of the hub, else ""
    files         name, bytes and sha256 of each file of configuration and weights
    licence       what its card or header says, by the keys that cards use
    licence_files texts of licences that lay beside it, by name
    earlier       its own prunings, the first one first
    """

    name: str
    original: str
    revision: str = ""
    files: tuple[Mapping[str, Any], ...] = ()
    licence: Mapping[str, Any] = field(default_factory=dict)
    licence_files: Mapping[str, bytes] = field(default_factory=dict)
    earlier: tuple[Mapping[str, Any], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What stands in pruning.json."""
        return {"name": self.name, "revision": self.revision or None, "files": list(self.files)}


def source_of(name: str, model: Located, folder: str, *, pruned: bool) -> Source:
    """What is known of `model`, called `name`, whose files lie in `folder` (of a GGUF file: where it was unpacked to).

    pruned  whether its configuration records heads that went before

    Raises CheckpointError, one line, where a file cannot be read.
    """
    if model.kind == "gguf":
        return Source(name, "" if pruned else name, files=_hashed([model.text]), licence=_of_header(model.text))
    own = [model.text] if model.kind == "safetensors" else _weight_files(folder)
    before = _record(os.path.join(folder, REPORT_NAME)) if pruned else {}
    commit = os.path.basename(folder)
    return Source(
        name,
        str(before.get("original") or before.get("model") or "") if pruned else name,
        commit if model.kind == "hub" and _COMMIT.fullmatch(commit) else "",
        _hashed([os.path.join(folder, "config.json"), *own]),
        _of_card(os.path.join(folder, CARD_NAME)),
        _licence_files(folder),
        (*before.get("earlier", ()), {key: before[key] for key in _KEPT if key in before}) if before else (),
    )


def _weight_files(folder: str) -> list[str]:
    return [os.path.join(folder, name) for name in read_sharded(folder).files]


def _hashed(paths: Sequence[str]) -> tuple[Mapping[str, Any], ...]:
    try:
        return tuple(
            {"name": os.path.basename(path), "bytes": os.path.getsize(path), "sha256": file_sha256(path)}
            for path in paths
        )
    except OSError as error:
        raise CheckpointError(f"{shown_path(error.filename)}: cannot be read ({error.strerror or error})") from None


def _record(path: str) -> Mapping[str, Any]:
    """The pruning.json of an earlier pruning; nothing where there is none, or another program's."""
    try:
        found = load_json_object(path)
    except CheckpointError:
        return {}
    names = (found.get("model"), found.get("original", ""))
    rows = found.get("earlier", [])
    known = isinstance(rows, list) and all(isinstance(row, dict) for row in rows)
    known = known and all(isinstance(name, str) and len(name) <= _MOST_CHARACTERS for name in names)
    return found if known and found.get("schema") == SCHEMA else {}


def _of_header(path: str) -> dict[str, Any]:
    """What the metadata of a GGUF file says of its licence."""
    metadata = read_gguf(path).metadata
    asked = {
        "license": "general.license",
        "license_name": "general.license.name",
        "license_link": "general.license.link",
    }
    return _words({key: metadata.get(name) for key, name in asked.items()})


def _of_card(path: str) -> dict[str, Any]:
    """What the card of a model says of its licence; nothing where there is none that can be read."""
    from huggingface_hub.repocard import metadata_load

    try:
        if not _small(path):
            return {}
        found = metadata_load(Path(path))
    except Exception:  # noqa: BLE001  a card is for people: one that is no YAML says nothing to us
        return {}
    return _words({key: found.get(key) for key in _LICENCE_KEYS}) if isinstance(found, dict) else {}


def _words(found: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are short words, or lists of them."""

    def word(value: Any) -> bool:
        return isinstance(value, str) and 0 < len(value) <= _MOST_CHARACTERS

    kept = {key: list(value) if isinstance(value, tuple) else value for key, value in found.items()}
    return {
        key: value
        for key, value in kept.items()
        if word(value) or (isinstance(value, list) and 0 < len(value) <= len(_LICENCE_KEYS) and all(map(word, value)))
    }


def _small(path: str) -> bool:
    """Whether it is a file, and none that takes long to read."""
    found = os.stat(path)
    return stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES


def _licence_files(folder: str) -> dict[str, bytes]:
    """Licences and notices beside a model, which go where it goes."""
    paths = [Path(folder, name) for name in sorted(os.listdir(folder)) if _LICENCE_FILE.fullmatch(name)]
    try:
        return {path.name: path.read_bytes() for path in paths if _small(str(path))}
    except OSError as error:
        raise CheckpointError(f"{shown_path(error.filename)}: cannot be read ({error.strerror or error})") from None


def front_matter(source: Source) -> str:
    """The block of a card that programs read; a JSON value is a YAML value."""
    rows = dict(source.licence) | ({"base_model": source.name} if source.revision else {})
    return (
        "".join(["---\n", *(f"{key}: {json.dumps(value)}\n" for key, value in rows.items()), "---\n\n"]) if rows else ""
    )


def licence_text(source: Source) -> str:
    """A sentence of a card about the licence that goes where the model goes."""
    said = source.licence.get("license")
    said = one_line(", ".join(said) if isinstance(said, list) else said or "", 200)
    files = f" (text: {', '.join(map(shown_path, sorted(source.licence_files)))})" if source.licence_files else ""
    if said or files:
        return (
            f"License: {said or 'as below'}{files}, carried over from {source.name}, whose intended use holds here too."
        )
    return f"{source.name} states no license here; whatever its license and intended use are, they hold for this model too."
