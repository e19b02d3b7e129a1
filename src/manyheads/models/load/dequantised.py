"""GGUF files, dequantised once and kept as safetensors in the user's cache.

Dequantising takes ten times as long as reading the result. An entry is a folder named by the file's hash and the version
of transformers that made it; it is filled under another name and renamed when it is complete, so that two processes, a
full disk or an interrupt never leave half of one. A cache that cannot be written only costs time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from manyheads.checkpoints.json_config import load_json_object
from manyheads.errors import CheckpointError
from manyheads.quoting import shown_path
from manyheads.report.parts import part_folder
from manyheads.spec import Heads, Rope, StackSpec

__all__ = ["VARIABLE", "cache_folder", "check_turned", "entry_folder", "file_sha256", "intact", "keep"]

VARIABLE = "MANYHEADS_CACHE"
_MANIFEST = "manyheads.json"
_SCHEMA = "manyheads.unpacked/1"


def cache_folder() -> Path:
    """Where this user's cached files belong: $MANYHEADS_CACHE, else `manyheads` in the system's folder for caches.

    Raises OSError where the system names no home.
    """
    chosen = os.environ.get(VARIABLE, "")
    if chosen:
        return Path(os.path.abspath(os.path.expanduser(chosen)))
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OSError(str(error)) from None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return Path(base) / "manyheads"


def check_turned(config: Any, stack: StackSpec, path: str) -> None:
    """Refuse a GGUF file whose heads are rotated in part where transformers' reader has lost how much: it would turn all.

    `config` is what transformers made of the file, `stack` what the file says. Raises CheckpointError.
    """
    told = [getattr(config, name, None) for name in ("rotary_dim", "partial_rotary_factor")]
    told.append((getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor"))
    if any(value not in (None, 1.0) for value in told):
        return
    for block, _ in stack.main.groups:
        for spec in block.attentions:
            rope = spec.positions
            if isinstance(spec.kv, Heads) and isinstance(rope, Rope) and rope.dim < spec.head_dim:
                raise CheckpointError(
                    f"{shown_path(path)}: {rope.dim} of the {spec.head_dim} elements of a head are rotated, and transformers "
                    "turns whole heads of what it reads from GGUF: its results would be another model's; valid: the same "
                    "model as .safetensors"
                )


def file_sha256(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def entry_folder(sha256: str, version: str) -> Path:
    """Where the file of this hash, dequantised by this version of transformers, is kept. Raises OSError without a home."""
    return cache_folder() / "unpacked" / f"{sha256[:32]}-transformers-{version}"


def intact(entry: Path, sha256: str) -> bool:
    """Whether `entry` is complete: made from the file of this hash, every file of its size, weight headers readable."""
    from manyheads.checkpoints.safetensors_header import read_sharded

    try:
        manifest = load_json_object(entry / _MANIFEST)
        if manifest["schema"] != _SCHEMA or manifest["source_sha256"] != sha256:
            return False
        if any((entry / name).stat().st_size != size for name, size in manifest["files"].items()):
            return False
        read_sharded(str(entry))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, CheckpointError):
        return False
    return True


def keep(entry: Path, sha256: str, write: Callable[[Path], None]) -> str:
    """Makes `entry` from the files that `write` puts into the folder it is given; "" when done, else why not.

    An entry that is there and intact is left alone; a broken one is replaced. Only `write`'s errors of the system and of
    safetensors are answered so; an interrupt removes what was begun and goes on.
    """
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with part_folder(str(entry)) as folder:
            part = Path(folder)
            write(part)
            files = {file.name: file.stat().st_size for file in sorted(part.iterdir())}
            manifest = {"schema": _SCHEMA, "source_sha256": sha256, "files": files}
            (part / _MANIFEST).write_text(json.dumps(manifest, indent=2), "utf-8")
            if not intact(part, sha256):
                return "what was written could not be read back"
            _put(part, entry, sha256)
    except Exception as error:  # noqa: BLE001  safetensors raises a kind of its own for a full disk
        return _reason(error)
    return ""


def _put(part: Path, entry: Path, sha256: str) -> None:
    """Renames `part` to `entry`; where another process was first and its entry is intact, that one stays."""
    try:
        os.rename(part, entry)
        return
    except OSError:
        if not entry.exists():
            raise
    if intact(entry, sha256):
        return
    with part_folder(str(entry)) as aside:
        with contextlib.suppress(FileNotFoundError):  # another process moved it first
            os.rename(entry, os.path.join(aside, "broken"))
        with contextlib.suppress(OSError):  # or put its own there
            os.rename(part, entry)


def _reason(error: Exception) -> str:
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(words).strip().splitlines()[0][:200]
