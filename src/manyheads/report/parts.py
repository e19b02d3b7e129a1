"""What is being written, under a hidden name beside its place: whose it is, and clearing what a writer left that is gone.

    .model.manyheads-3f1c…-90ab…-4711-5d2e….part      machine, its boot, process, and a number of its own

A process that is killed leaves its part behind. The next one that writes into that folder removes it, but only where it
knows that the writer has ended: on the same machine the process is looked for; elsewhere a day without a change must do.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import time
from collections.abc import Iterator

__all__ = ["clear_parts", "part_folder", "part_path"]

_PART = re.compile(r"\..*\.manyheads-([0-9a-f]{8})-([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{8}\.part", re.DOTALL)
_LONGEST_BASE_BYTES = 64
_STALE_SECONDS = 86_400.0


def part_path(target: str) -> str:
    """A new hidden name beside `target` for what shall become it; what dead writers left in that folder goes away."""
    folder, base = os.path.split(target)
    clear_parts(folder)
    short = os.fsencode(base)[:_LONGEST_BASE_BYTES].decode(errors="ignore")
    machine, boot = _here()
    return os.path.join(folder, f".{short}.manyheads-{machine}-{boot}-{os.getpid()}-{os.urandom(4).hex()}.part")


@contextlib.contextmanager
def part_folder(target: str) -> Iterator[str]:
    """A folder of that name, for this user alone; it goes away at the end, whatever happens inside. Raises OSError."""
    path = part_path(target)
    try:
        os.mkdir(path, 0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def clear_parts(folder: str) -> None:
    """Remove the files and folders in `folder` whose writers are gone; what cannot be removed stays without a word."""
    with contextlib.suppress(OSError):
        with os.scandir(folder or os.curdir) as entries:
            left = [entry for entry in entries if (found := _PART.fullmatch(entry.name)) and _is_left(entry, found)]
        for entry in left:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def _is_left(entry: os.DirEntry[str], found: re.Match[str]) -> bool:
    machine, boot = _here()
    if found[1] == machine and os.name == "posix":
        return found[2] != boot or not _alive(int(found[3]))
    try:
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > _STALE_SECONDS
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's
        return True
    return True


@functools.cache
def _here() -> tuple[str, str]:
    """This machine, as far as numbers of processes mean the same, and its boot; 8 hexadecimal digits each."""
    name = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")
    space = boot = ""
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")  # of a container: its processes have numbers of their own
    with contextlib.suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read()
    return _digits(f"{name} {space}"), _digits(boot)


def _digits(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:8]
