"""Where a smaller model may be written: asked before the work, and left as it was where the work fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from manyheads.checkpoints.locate import Located
from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.quoting import shown_path

__all__ = ["appearing", "check_folder", "folder_of"]

_VALID = "valid: a folder that does not exist yet, or an empty one"


def check_folder(folder: str | os.PathLike[str], *, model: Located | None = None, named: str = "") -> Path:
    """The absolute path of a folder that a model may be written to.

    model  the model that is read, whose own folder stays as it is
    named  what to call `folder` in an error; its path where that is ""

    Raises CheckpointError, one line, where it is in use, is no possible name, lies inside the model's folder, or where
    the folder that would hold it is no folder or cannot be written into.
    """
    text = os.fspath(folder)
    target = Path(os.path.abspath(text))
    where = named or shown_path(target)
    try:
        target.name.encode()
        known = bool(text) and "\0" not in text
    except UnicodeEncodeError:
        known = False
    if not known:
        raise CheckpointError(f"{shown_path(text)}: no name that a folder with a model can have; {_VALID}")
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


def folder_of(model: Located) -> str:
    """The folder that belongs to a model: "" of a GGUF file, which lies among others, and of a hub id."""
    if model.kind == "folder":
        return model.text
    return os.path.dirname(model.text) or os.curdir if model.kind == "safetensors" else ""


@contextlib.contextmanager
def appearing(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it at the end; where what happens inside fails, nothing of it is left.

    Folders above `target` are made where they are missing. An OSError becomes a CheckpointError, and errors speak of
    `target`.
    """
    above = [each for each in target.parents if not each.exists()]  # the innermost first
    holder = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        holder = Path(tempfile.mkdtemp(prefix=f".{target.name[:64]}.part-", dir=target.parent))
        part = holder / target.name  # not the private folder itself, so that it has the permissions of any other
        yield part
        if os.name == "nt" and target.exists():  # elsewhere an empty folder makes room by itself
            target.rmdir()
        os.replace(part, target)
    except BaseException as error:
        if holder is not None:
            shutil.rmtree(holder, ignore_errors=True)
        for each in above:
            with contextlib.suppress(OSError):  # not empty: someone else uses it by now
                each.rmdir()
        told = _told(error, target, holder)
        if told is error:
            raise
        raise told from None
    shutil.rmtree(holder, ignore_errors=True)


def _told(error: BaseException, target: Path, holder: Path | None) -> BaseException:
    """The error in words of the folder that was asked for, not of the one beside it that nobody will find."""
    if isinstance(error, OSError):
        return CheckpointError(f"{shown_path(target)}: cannot be written ({error.strerror or error})")
    if isinstance(error, ManyheadsError) and holder is not None and shown_path(holder) in str(error):
        return type(error)(str(error).replace(shown_path(holder / target.name), shown_path(target)))
    return error
