"""FILE.py:FUNCTION, loaded as the user's own code; whatever goes wrong there is one line."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from manyheads.errors import CheckpointError, SpecError

__all__ = ["SETTINGS", "load", "settings_of"]

SETTINGS = ("layout", "mask", "names", "no", "require", "fixed", "dtype", "tolerance")
"""What MANYHEADS_CHECK may hold."""


def load(path: str, name: str) -> tuple[Callable[..., Any], ModuleType]:
    """The function `name` (dots allowed) of the file, and its module. CheckpointError with one line otherwise."""
    module = _module(path)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise CheckpointError(f"{path} has no function {name!r}; {_functions(module)}")
    if inspect.isclass(found):
        raise CheckpointError(
            f"{name} in {path} is a class; a function of q, k and v is needed: write one that calls it (docs/check.md)"
        )
    if not callable(found):
        raise CheckpointError(f"{name} in {path} is a {type(found).__name__}, not a function; {_functions(module)}")
    return found, module


def settings_of(function: Callable[..., Any], module: ModuleType) -> dict[str, Any]:
    """MANYHEADS_CHECK of the module, then `manyheads_check` of the function over it."""
    made: dict[str, Any] = {}
    for where, value in (
        ("MANYHEADS_CHECK", getattr(module, "MANYHEADS_CHECK", {})),
        ("manyheads_check", getattr(function, "manyheads_check", {})),
    ):
        if not isinstance(value, Mapping):
            raise SpecError(f"{where} must be a dict of {', '.join(SETTINGS)}; found a {type(value).__name__}")
        strange = [key for key in value if key not in SETTINGS]
        if strange:
            raise SpecError(f"{where} has the key {strange[0]!r}; valid are {', '.join(SETTINGS)}")
        made |= value
    return made


def _module(path: str) -> ModuleType:
    # a name of its own: a file called torch.py must not stand for torch
    name = f"checked_{os.path.splitext(os.path.basename(path))[0]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise CheckpointError(f"{path} is not a Python file; FILE.py:FUNCTION would be valid")
    module = importlib.util.module_from_spec(spec)
    folder = os.path.dirname(os.path.abspath(path))
    sys.path.insert(0, folder)  # its neighbours, as if it were run
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # theirs may be any, sys.exit too
        raise CheckpointError(f"{path} cannot be loaded: {_what(error, path)}") from error
    finally:
        with contextlib.suppress(ValueError):  # the file may have changed the path itself
            sys.path.remove(folder)
        sys.path.append(
            folder
        )  # for what its functions import; last, so that no neighbour stands for a package of ours
    return module


def _what(error: BaseException, path: str) -> str:
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r}){_at(error, path)}"
    if isinstance(error, SyntaxError) and error.filename == path:
        return f"line {error.lineno}: {error.msg}"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}{_at(error, path)}"


def _at(error: BaseException, path: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    return f" (line {lines[-1]})" if lines else ""


def _functions(module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    ]
    return f"its functions are {', '.join(names)}" if names else "it defines no function"
