"""How the kernels are compiled, and kept: for the next process, for as long as their sources are the same.

Numba keeps what it compiles beside the source, in the user's cache, or in NUMBA_CACHE_DIR, and takes it again while the
file of the function itself has not changed. What that function calls may have: so the stamp that it compares is made of all
the sources here. Where no folder can be written, kernels are compiled anew in every process.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

__all__ = ["can_be_kept", "compiled"]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` as machine code that lets go of the interpreter's lock: made when first called, then from the disk."""
    made = numba.njit(nogil=True, error_model="numpy", boundscheck=False)(function)
    if can_be_kept():
        made.enable_caching()
        file = made._cache._cache_file
        file._source_stamp = (file._source_stamp, _sources())
    return made


@cache
def can_be_kept() -> bool:
    """True if compiled code can be kept for the next process; where it cannot, says so once, as a warning."""
    try:
        numba.njit(cache=True)(_probe)
    except (RuntimeError, OSError) as error:
        warnings.warn(
            f"manyheads: compiled kernels cannot be kept on disk and are made anew by every process, some seconds for each "
            f"dtype and head size ({str(error).splitlines()[0]}); NUMBA_CACHE_DIR names a folder that can be written",
            stacklevel=2,
        )
        return False
    return True


def _probe() -> None:
    """Something to decorate; never compiled."""


@cache
def _sources() -> str:
    """A digest of all that the kernels are made of."""
    digest = hashlib.sha256()
    for path in (Path(__file__).with_name(name) for name in ("decode.py", "lanes.py", "micro.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
