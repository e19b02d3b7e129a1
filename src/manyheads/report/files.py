"""A file that is written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from manyheads.errors import ManyheadsError

__all__ = ["check_target", "write_whole"]


def check_target(path: str | os.PathLike[str]) -> None:
    """Raises the ManyheadsError that `write_whole` would: call it before the work whose result goes to `path`."""
    name = os.fspath(path)
    if not name or "\0" in name:
        raise ManyheadsError(f"cannot write to {name!r}: that is no file name")
    if os.path.isdir(name):
        raise ManyheadsError(f"cannot write {name}: it is a folder; the name of a file in it would be valid")
    folder = os.path.dirname(os.path.realpath(name))
    if not os.path.isdir(folder):
        kind = "is not a folder" if os.path.exists(folder) else "does not exist"
        raise ManyheadsError(f"cannot write {name}: the folder {folder} {kind}; make it first or choose another")


def write_whole(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes `content` (text as UTF-8) to `path` so that whoever looks sees the old file or the new one, never a part.

    A temporary file in the same folder is filled, forced to the disk and renamed over `path`; on any failure it is
    removed and what was at `path` stays. A link is followed, permissions are kept, and a device or pipe, which has
    nothing to keep, is written straight. Raises ManyheadsError with the reason.
    """
    check_target(path)
    name = os.fspath(path)
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    try:
        mode = _mode_of(name)
        if mode is not None and not stat.S_ISREG(mode):
            _write_straight(name, data)
        else:
            _write_and_rename(os.path.realpath(name), data, mode)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ManyheadsError(f"cannot write {name}: {error.strerror or error}") from error


def _mode_of(name: str) -> int | None:
    try:
        return os.stat(name).st_mode
    except FileNotFoundError:
        return None


def _write_straight(name: str, data: bytes) -> None:
    with open(name, "wb") as file:
        file.write(data)


def _write_and_rename(target: str, data: bytes, mode: int | None) -> None:
    if mode is not None and not os.access(target, os.W_OK):
        # A rename needs only the folder's permission; a file that its owner made read-only is not to be replaced.
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    folder, base = os.path.split(target)
    temporary = os.path.join(folder, f".{base[:64]}.{os.urandom(6).hex()}.part")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(temporary, stat.S_IMODE(mode))
        os.replace(temporary, target)
    except BaseException:  # an interrupt too: nothing is left behind
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    """Forces the rename itself to the disk, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
