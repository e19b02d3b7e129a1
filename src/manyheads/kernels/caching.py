"""Whether Numba has a folder to keep what it compiles in; if not, kernels are compiled anew in every process.

Numba asks when a function is decorated and raises where it finds none: beside the source, in the user's cache, or in
NUMBA_CACHE_DIR.
"""

from __future__ import annotations

import warnings
from functools import cache

import numba

__all__ = ["can_be_kept"]


def _probe() -> None:
    """Something to decorate; never compiled."""


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
