"""Facts about the machine at hand that need nothing but Python: memory, cores, caches, and what else keeps it busy."""

from __future__ import annotations

import os
import platform
import time

__all__ = ["busy_cores", "cores", "last_level_cache_bytes", "memory_bytes", "processor", "usable_cores"]

_CACHES = "/sys/devices/system/cpu/cpu0/cache"
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def memory_bytes() -> int | None:
    """Physical memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def cores() -> int:
    """Cores of the machine; at least one."""
    return os.cpu_count() or 1


def usable_cores() -> int:
    """Those of them that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores()


def processor() -> str:
    """The processor's own name where Linux tells it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def last_level_cache_bytes(folder: str | os.PathLike[str] = _CACHES) -> int | None:
    """The largest cache that Linux lists for the first processor; None where it lists none."""
    sizes = []
    for index in sorted(os.listdir(folder)) if os.path.isdir(folder) else ():
        try:
            with open(os.path.join(folder, index, "size"), encoding="ascii") as file:
                text = file.read().strip()
        except (OSError, UnicodeDecodeError):
            continue
        digits, unit = text.rstrip("KMG"), _UNITS.get(text[-1:], 1)
        if digits.isdecimal():
            sizes.append(int(digits) * unit)
    return max(sizes, default=None)


def busy_cores() -> int:
    """Cores that other programs keep busy: the load of the last minute, or what runs at this moment where that is less.

    0 where the system does not say.
    """
    try:
        load = os.getloadavg()[0]
    except (OSError, AttributeError):
        return 0
    return round(min(load, _running_now(load)))


def _running_now(otherwise: float) -> float:
    """The mean number of other running tasks over a tenth of a second; `otherwise` where the system does not say."""
    seen = []
    for _ in range(5):
        try:
            with open("/proc/loadavg", encoding="ascii") as file:
                seen.append(int(file.read().split()[3].partition("/")[0]) - 1)
        except (OSError, ValueError, IndexError):
            return otherwise
        time.sleep(0.02)
    return sum(seen) / len(seen)
