"""What a measurement is made on and with: the machine, what of it is free, and the versions of what takes part."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import Any

__all__ = ["busy_cores", "machine", "usual_threads", "versions"]

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system; an accelerator where torch sees one. No name of the host or the user."""
    import torch

    names = getattr(os, "sysconf_names", {})
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "memory_bytes": memory,
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """manyheads, Python and the packages that took part, those that are installed."""
    from manyheads import __version__

    found = {"manyheads": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def usual_threads() -> int:
    """As many threads as torch would take, less one for each core that is busy with something else; at least one.

    Torch's threads wait for each other after every operation: two on a busy pair of cores were seven times slower than
    one (44 s against 6 s for 1,536 tokens of SmolLM2, while other programs ran).
    """
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores - busy_cores()))


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
