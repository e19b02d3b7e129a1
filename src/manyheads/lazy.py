"""Names that a package offers and loads when they are first used (PEP 562): an import of the package alone costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

__all__ = ["lazy"]


def lazy(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `package`, for names that stand in modules below it.

        __getattr__, __dir__ = lazy(__name__, {"Attention": "attention", "mha": "textbook"})

    `homes`: for each name the module that holds it, relative to the package. No name may be that of a module of the package:
    importing the module would put it in the name's place. AttributeError for names that are not offered.
    """

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(f"{package}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return load, names
