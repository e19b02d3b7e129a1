"""What of the machine decides how it is measured: its last-level cache, and the memory that may be used."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MOST_BYTES", "MOST_COPIED_BYTES", "ROTATION_FACTOR", "Room", "last_level_cache_bytes", "room"]

MOST_BYTES = 6 << 30
"""All memory of a run: the buffer of caches, and what a path copies of one."""

MOST_COPIED_BYTES = MOST_BYTES // 2
ROTATION_FACTOR = 4
# Where the system does not say: more than a desktop's, less than a server's.
_ASSUMED_CACHE_BYTES = 64 << 20
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Room:
    """Bytes over which caches are rotated, and why not more or other ones (a sentence, or "")."""

    rotation_bytes: int
    cache_bytes: int
    note: str = ""


def last_level_cache_bytes(folder: Path = _CACHES) -> int | None:
    """The largest cache that Linux lists for the first processor; None where it lists none."""
    sizes = []
    for file in folder.glob("index*/size"):
        try:
            text = file.read_text().strip()
        except OSError:
            continue
        digits, unit = text.rstrip("KMG"), _UNITS.get(text[-1:], 1)
        if digits.isdecimal():
            sizes.append(int(digits) * unit)
    return max(sizes, default=None)


def room(cache_bytes: int | None = None, *, memory_bytes: int | None = None) -> Room:
    """Four times the last-level cache, and at most a third of what is left when a quarter of memory and 6 GiB are kept.

    Other ways to compute a step copy and widen the cache: they take up to twice the rotation again.
    """
    known = last_level_cache_bytes() if cache_bytes is None else cache_bytes
    size = known or _ASSUMED_CACHE_BYTES
    wanted = ROTATION_FACTOR * size
    memory = memory_bytes or _memory_bytes() or MOST_BYTES
    most = min(MOST_BYTES, memory * 3 // 4) // 3
    notes = []
    if not known:
        notes.append(f"the system does not say how large the last-level cache is; {size >> 20} MiB were assumed")
    if wanted > most:
        notes.append(
            f"caches are rotated over {most / size:.1f} times the last-level cache instead of {ROTATION_FACTOR}: "
            f"{most >> 20} MiB may be used for them, and some of them may still be read from it"
        )
    return Room(min(wanted, most), size, "; ".join(notes))


def _memory_bytes() -> int | None:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
