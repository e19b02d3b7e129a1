"""Where a smaller model may be written: asked before the work."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from manyheads.checkpoints.locate import Located
from manyheads.errors import CheckpointError
from manyheads.quoting import shown_path

__all__ = ["check_folder", "folder_of"]

_ROOM = "x" * 128  # as long as any name that is given to a part or a file of it
_VALID = "valid: a folder that does not exist yet, or an empty one"


def check_folder(folder: str | os.PathLike[str], *, model: Located | None = None, named: str = "") -> Path:
    """The absolute path of a folder that a model may be written to.

    model  the model that is read, whose own folder stays as it is
    named  what to call `folder` in an error; its path where that is ""

    Raises CheckpointError, one line, where it is in use, is no possible name, lies inside the model's folder, or where
    the folder that would hold it is no folder or cannot be written into.
    """
    text = os.fspath(folder)
    try:
        target = Path(os.path.abspath(text))
    except OSError:
        raise CheckpointError(
            f"{shown_path(text)}: the current folder is not there any more; valid: a full path"
        ) from None
    where = named or shown_path(target)
    _check_name(text, target, where)
    if os.path.lexists(target) and (not target.is_dir() or target.is_symlink() or any(target.iterdir())):
        raise CheckpointError(f"{where}: is there already; {_VALID}")
    own = os.path.realpath(folder_of(model)) if model is not None and folder_of(model) else ""
    if own and os.path.commonpath([own, os.path.realpath(target)]) == own:
        raise CheckpointError(
            f"{where}: is inside the folder of the model itself, which stays as it is; valid: a folder elsewhere"
        )
    holder = next(each for each in target.parents if os.path.lexists(each))
    if not holder.is_dir():
        raise CheckpointError(f"{where}: {shown_path(holder)} is not a folder, so nothing can be written into it")
    if not os.access(holder, os.W_OK | os.X_OK):
        raise CheckpointError(f"{where}: {shown_path(holder)} cannot be written into; valid: a folder elsewhere")
    return target


def _check_name(text: str, target: Path, where: str) -> None:
    try:
        target.name.encode()
        known = bool(text) and "\0" not in text
    except UnicodeEncodeError:
        known = False
    if not known:
        raise CheckpointError(f"{shown_path(text)}: no name that a folder with a model can have; {_VALID}")
    for path in (target, target.parent / _ROOM / target.name / _ROOM):  # there, and a file of it on the way
        try:
            os.lstat(path)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise CheckpointError(f"{where}: {error.strerror}; valid: a shorter one") from None


def folder_of(model: Located) -> str:
    """The folder that belongs to a model: "" of a GGUF file, which lies among others, and of a hub id."""
    if model.kind == "folder":
        return model.text
    return os.path.dirname(model.text) or os.curdir if model.kind == "safetensors" else ""
