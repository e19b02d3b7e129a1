"""FILE.py:FUNCTION, loaded as the user's own code; whatever goes wrong there is one line."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from manyheads.errors import CheckpointError, SpecError

__all__ = ["SETTINGS", "Loaded", "load", "settings_of"]

SETTINGS = ("layout", "mask", "names", "no", "require", "fixed", "dtype", "tolerance")
"""What MANYHEADS_CHECK may hold."""


@dataclass(frozen=True)
class Loaded:
    """What stands in the file under a name: a function, a class or an object that can be called; its module; and the class
    of a method that wants an object, None for all others."""

    thing: Any
    module: ModuleType
    name: str
    owner: type | None = None


def load(path: str, name: str) -> Loaded:
    """What `name` (dots allowed) of the file is. CheckpointError with one line where it is nothing that can be called."""
    module = _module(path)
    found: Any = module
    owner: Any = None
    for part in name.split("."):
        owner, found = found, getattr(found, part, None)
        if found is None:
            raise CheckpointError(f"{path} has no function {name!r}; {_functions(module)}")
    if not callable(found) and not callable(getattr(found, "forward", None)):
        raise CheckpointError(f"{name} in {path} is a {type(found).__name__}, not a function; {_functions(module)}")
    wants_object = inspect.isclass(owner) and inspect.isfunction(inspect.getattr_static(owner, name.rpartition(".")[2]))
    return Loaded(found, module, name, owner if wants_object else None)


def settings_of(loaded: Loaded) -> dict[str, Any]:
    """MANYHEADS_CHECK of the module, then `manyheads_check` of the function or class over it."""
    made: dict[str, Any] = {}
    for where, value in (
        ("MANYHEADS_CHECK", getattr(loaded.module, "MANYHEADS_CHECK", {})),
        ("manyheads_check", getattr(loaded.thing, "manyheads_check", {})),
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
    def named(kind: Callable[[Any], bool]) -> str:
        return ", ".join(
            name for name, value in vars(module).items()
            if kind(value) and value.__module__ == module.__name__ and not name.startswith("_")
        )  # fmt: skip

    functions, classes = named(inspect.isfunction), named(inspect.isclass)
    told = [f"its {what} are {names}" for what, names in (("functions", functions), ("classes", classes)) if names]
    return "; ".join(told) or "it defines no function"
