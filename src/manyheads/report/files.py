"""Files and folders that are written whole or not at all: filled under another name, and moved to their place in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.quoting import shown_path
from manyheads.report.parts import part_folder, part_path

__all__ = ["check_target", "file_appearing", "folder_appearing", "write_all", "write_whole"]


def check_target(path: str | os.PathLike[str]) -> None:
    """Raises the ManyheadsError that `write_whole` would: call it before the work whose result goes to `path`."""
    name = os.fspath(path)
    where = shown_path(name)
    if not name or "\0" in name:
        raise ManyheadsError(f"cannot write to {where}: that is no file name")
    try:
        folder = os.path.dirname(os.path.realpath(name))
    except OSError:
        raise ManyheadsError(
            f"cannot write {where}: the current folder is not there any more; a full path would be valid"
        ) from None
    mode = _mode_of(name, where)
    if mode is not None and stat.S_ISDIR(mode):
        raise ManyheadsError(f"cannot write {where}: it is a folder; the name of a file in it would be valid")
    if not os.path.isdir(folder):
        kind = "is not a folder" if os.path.exists(folder) else "does not exist"
        raise ManyheadsError(
            f"cannot write {where}: the folder {shown_path(folder)} {kind}; make it first or choose another"
        )


def _mode_of(name: str, where: str) -> int | None:
    """What stands at `name`: None where nothing does. Raises where nothing ever could, for its length."""
    try:
        return os.stat(name).st_mode
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ManyheadsError(f"cannot write {where}: {_reason(error)}; a shorter one would be valid") from None
        return None


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes `content` (text as UTF-8) to `path` as `file_appearing` does."""
    write_all({path: content})


def write_all(contents: Mapping[str | os.PathLike[str], str | bytes]) -> None:
    """Writes several files as `file_appearing` does: all of them are filled before the first one appears."""
    with contextlib.ExitStack() as stack:
        for path, content in contents.items():
            file = stack.enter_context(file_appearing(path))
            with _told(path):
                file.write(content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace"))
                _force(file)


@contextlib.contextmanager
def file_appearing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file to fill that becomes `path` at the end, so that whoever looks sees the old file or the new one, never a part.

    It stands in the same folder, is forced to the disk and renamed over `path`; on any failure it is removed and what was
    at `path` stays. A link is followed, permissions are kept, and a device or pipe, which has nothing to keep, is written
    straight. Raises ManyheadsError with the reason.
    """
    check_target(path)
    name = os.fspath(path)
    mode = _mode_of(name, shown_path(name))
    with _told(path):
        if mode is not None and not stat.S_ISREG(mode):
            with open(name, "wb") as file:
                yield file
        else:
            with _renamed(os.path.realpath(name), mode) as file:
                yield file


@contextlib.contextmanager
def _told(path: str | os.PathLike[str]) -> Iterator[None]:
    """An error of the system's as one of ours; a reader of a pipe that went away is left to whoever has the pipe."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ManyheadsError(f"cannot write {shown_path(path)}: {_reason(error)}") from error


def _reason(error: OSError) -> str:
    return str(error.strerror or error)


@contextlib.contextmanager
def _renamed(target: str, mode: int | None) -> Iterator[BinaryIO]:
    if mode is not None and not os.access(target, os.W_OK):
        # A rename needs only the folder's permission; a file that its owner made read-only is not to be replaced.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    part = part_path(target)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            yield file
            _force(file)
        if mode is not None:
            os.chmod(part, stat.S_IMODE(mode))
        os.replace(part, target)
    except BaseException:  # an interrupt too: nothing is left behind
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    _sync_folder(os.path.dirname(target))


def _force(file: BinaryIO) -> None:
    """To the disk, where it is a file of a disk's."""
    file.flush()
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        os.fsync(file.fileno())


def _sync_folder(folder: str) -> None:
    """Forces the rename itself to the disk, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def folder_appearing(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it at the end; where what happens inside fails, nothing of it is left.

    Folders above `target` are made where they are missing. An OSError becomes a CheckpointError, and errors speak of
    `target`. A folder that is there already is replaced where it is empty.
    """
    above = [each for each in target.parents if not os.path.lexists(each)]  # the innermost first
    part = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with part_folder(str(target)) as holder:
            part = Path(holder) / target.name  # not the private folder itself, so that it has any other's permissions
            part.mkdir()
            yield part
            if os.name == "nt" and target.exists():  # elsewhere an empty folder makes room by itself
                target.rmdir()
            os.replace(part, target)
    except BaseException as error:
        for each in above:
            with contextlib.suppress(OSError):  # not empty: someone else uses it by now
                each.rmdir()
        told = _of_target(error, target, part)
        if told is error:
            raise
        raise told from None


def _of_target(error: BaseException, target: Path, part: Path | None) -> BaseException:
    """The error in words of the folder that was asked for, not of the one beside it that nobody will find."""
    if isinstance(error, OSError):
        return CheckpointError(f"{shown_path(target)}: cannot be written ({_reason(error)})")
    if isinstance(error, ManyheadsError) and part is not None and shown_path(part) in str(error):
        error.args = (str(error).replace(shown_path(part), shown_path(target)),)
    return error
