"""What a measurement was made on and with: the machine, and the versions of what took part."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

__all__ = ["machine", "versions"]

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
