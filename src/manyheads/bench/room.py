"""How much memory a measurement may use, and over how much of it caches are rotated."""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.cost import machine

__all__ = ["MOST_BYTES", "MOST_COPIED_BYTES", "ROTATION_FACTOR", "Room", "room"]

MOST_BYTES = 6 << 30
"""All memory of a run: the buffer of caches, and what a path copies of one."""

MOST_COPIED_BYTES = MOST_BYTES // 2
ROTATION_FACTOR = 4
# Where the system does not say: more than a desktop's, less than a server's.
_ASSUMED_CACHE_BYTES = 64 << 20


@dataclass(frozen=True)
class Room:
    """Bytes over which caches are rotated, and why not more or other ones (a sentence, or "")."""

    rotation_bytes: int
    cache_bytes: int
    note: str = ""


def room(cache_bytes: int | None = None, *, memory_bytes: int | None = None) -> Room:
    """Four times the last-level cache, and at most a third of what is left when a quarter of memory and 6 GiB are kept.

    Other ways to compute a step copy and widen the cache: they take up to twice the rotation again.
    """
    known = machine.last_level_cache_bytes() if cache_bytes is None else cache_bytes
    size = known or _ASSUMED_CACHE_BYTES
    wanted = ROTATION_FACTOR * size
    memory = memory_bytes or machine.memory_bytes() or MOST_BYTES
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
