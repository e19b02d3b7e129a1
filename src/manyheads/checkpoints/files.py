"""Opening what a user named, and saying in one line why it cannot be what was asked for."""

from __future__ import annotations

import os
import stat
from typing import BinaryIO

from manyheads.errors import CheckpointError
from manyheads.quoting import shown_path

__all__ = ["appearance", "check_regular", "open_regular", "read_small"]

# First bytes of what people pass by mistake, and what it is.
_APPEARANCES = (
    (b"version https://git-lfs", "a Git LFS pointer in place of the file (`git lfs pull` fetches it)"),
    (b"PK\x03\x04", "a zip archive, as torch.save writes"),
    (b"\x80\x02", "a Python pickle"),
    (b"GGUF", "a GGUF file"),
    (b"<", "HTML or XML, perhaps an error page saved in place of the file"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x89HDF", "an HDF5 file"),
)


def appearance(start: bytes) -> str:
    """What a file that begins with `start` seems to be, to end an error message with."""
    if not start:
        return "an empty file"
    for prefix, words in _APPEARANCES:
        if start.startswith(prefix):
            return words
    return f"a file that begins with {start[:8]!r}"


def open_regular(path: str | os.PathLike[str], *, wanted: str) -> tuple[BinaryIO, int]:
    """Open `path` for reading bytes and return it with its size in bytes; `wanted` says what it should have been.

    Pipes, devices and sockets are refused before they are opened, so that nothing waits for a writer.

    Raises CheckpointError when the path is missing, unreadable, a directory or not a regular file.
    """
    name = shown_path(path)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            raise CheckpointError(f"{name}: is {_irregular(found.st_mode)}; expected {wanted}")
        file = open(path, "rb")  # noqa: SIM115  the caller closes it
    except FileNotFoundError:
        raise CheckpointError(f"{name}: no such file; expected {wanted}") from None
    except OSError as error:
        raise CheckpointError(f"{name}: cannot be read ({error.strerror or error}); expected {wanted}") from None
    except CheckpointError:
        raise
    except ValueError:  # a null byte in the path
        raise CheckpointError(f"{name}: is not a possible path; expected {wanted}") from None
    return file, os.fstat(file.fileno()).st_size


def _irregular(mode: int) -> str:
    return "a directory" if stat.S_ISDIR(mode) else "not a regular file (a pipe, device or socket)"


def check_regular(path: str | os.PathLike[str], *, wanted: str, most: int) -> None:
    """Raise CheckpointError as `read_small` would, without reading: for files that another library is going to open."""
    file, size = open_regular(path, wanted=wanted)
    file.close()
    if size > most:
        raise CheckpointError(f"{shown_path(path)}: {size} bytes; expected {wanted}, at most {most} bytes")


def read_small(path: str | os.PathLike[str], *, wanted: str, most: int) -> bytes:
    """All of the file `path`, which may have `most` bytes: the one way to read what a user named and we hold whole.

    Raises CheckpointError, before anything is read, as `open_regular` does and for a larger file.
    """
    name = shown_path(path)
    check_regular(path, wanted=wanted, most=most)
    file, size = open_regular(path, wanted=wanted)
    with file:
        try:
            data = file.read((size or most) + 1)
        except OSError as error:
            raise CheckpointError(f"{name}: cannot be read ({error.strerror or error})") from None
    if len(data) > (size or most):  # some systems do not say the size
        raise CheckpointError(f"{name}: became longer than {size or most} bytes while it was read; expected {wanted}")
    return data
