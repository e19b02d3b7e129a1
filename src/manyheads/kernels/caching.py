"""How the kernels are compiled, and kept: for the next process, for as long as their sources are the same.

Numba keeps what it compiles beside the source, in the user's cache, or in NUMBA_CACHE_DIR, and takes it again while the
file of the function itself has not changed and its closure has the same bytes. Neither says enough here: what a kernel
calls lies in other files, so the stamp is made of all of them; and a closure that holds other compiled functions never has
the same bytes again, so what a kernel was made for is its name. Where no folder can be written, kernels are compiled anew
in every process.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc

__all__ = ["Compiled", "Entry", "can_be_kept", "compiled", "entry"]

_OPTIONS: dict[str, Any] = {"nopython": True, "nogil": True, "error_model": "numpy", "boundscheck": False}

Compiled = Callable[..., Any]


def compiled(function: Callable[..., Any]) -> Compiled:
    """`function` as machine code for others to call; it is kept as a part of the entries that call it.

    Its symbols are named after it and what it closes over. Numba tells closures apart by a number that each process counts
    anew: of two entries kept by different processes, one would call the functions of the other.
    """
    _name_after_closure(function)
    made: Compiled = numba.jit(**_OPTIONS)(function)
    return made


def _name_after_closure(function: Callable[..., Any]) -> None:
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    made_for = [
        str(value) if isinstance(value, int) else getattr(value, "__qualname__", "")
        for value in cells
        if isinstance(value, int) or callable(value)
    ]
    digest = hashlib.sha256("/".join(made_for).encode()).hexdigest()[:16]
    function.__qualname__ = f"{function.__qualname__}_{digest}" if made_for else function.__qualname__


@dataclass(frozen=True)
class Entry:
    """C code and where it lies; the object keeps it in memory. `from_disk`: whether an earlier process compiled it."""

    code: Any
    address: int
    from_disk: bool


def entry(function: Callable[..., Any], signature: Any, *, name: tuple[object, ...]) -> Entry:
    """`function` as C code of its own, compiled now or taken from the disk, where it is kept under `name`."""
    _name_after_closure(function)
    made: Any = CFunc(function, (signature.args, signature.return_type), locals={}, options=dict(_OPTIONS))
    if can_be_kept():
        made._cache = _NamedCache(function, name)
    made.compile()
    return Entry(made, made.address, from_disk=made.cache_hits > 0)


class _NamedCache(FunctionCache):  # type: ignore[misc]
    """Numba's cache of a function, told apart by a name in place of the bytes of its closure."""

    def __init__(self, function: Callable[..., Any], name: tuple[object, ...]) -> None:
        super().__init__(function)
        self._named = name
        file = self._cache_file
        file._source_stamp = (file._source_stamp, _sources())

    def _index_key(self, sig: Any, codegen: Any) -> tuple[Any, ...]:
        return (sig, codegen.magic_tuple(), self._named)


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
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
