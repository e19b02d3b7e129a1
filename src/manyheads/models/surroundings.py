"""What a measurement is made on and with: the machine, what of it is free, and the versions of what takes part."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from manyheads.cost.machine import busy_cores, cores, memory_bytes, processor, usable_cores

__all__ = ["machine", "usual_threads", "versions"]

_PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "gguf", "numpy")


def machine() -> dict[str, Any]:
    """Processor, cores, memory and system; an accelerator where torch sees one. No name of the host or the user."""
    import torch

    return {
        "processor": processor(),
        "cores": cores(),
        "threads": torch.get_num_threads(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.machine()}",
        "accelerator": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


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

    return max(1, min(torch.get_num_threads(), usable_cores() - busy_cores()))
