"""record: a frozen dataclass that is made four times faster.

`@dataclass(frozen=True)` compiles six methods a class, 0.9 ms each time Python starts; the fifty classes on the way to
`manyheads cost` took half of its time. Here only `__init__` is compiled (by `dataclass` itself); equality, hash, repr and
the refusal to change are shared functions. Everything of `dataclasses` works on the result: fields, replace, is_dataclass.
docs/decisions/0003-record.md has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, dataclass, field, fields
from typing import Any, TypeVar, dataclass_transform, overload

__all__ = ["record"]

T = TypeVar("T")

_COMPARED = "__record_compared__"
_HASHED = "__record_hashed__"
_HASH = "__record_hash__"


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(*, kw_only: bool = False) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, *, kw_only: bool = False) -> type[T] | Callable[[type[T]], type[T]]:
    """Make `cls` a frozen, hashable dataclass: attributes are set once, by `__init__`."""

    def make(cls: type[T]) -> type[T]:
        made = dataclass(eq=False, repr=False, kw_only=kw_only)(cls)
        own = fields(made)  # type: ignore[arg-type]
        setattr(made, _COMPARED, tuple(item.name for item in own if item.compare))
        setattr(made, _HASHED, tuple(item.name for item in own if (item.compare if item.hash is None else item.hash)))
        for method in (__setattr__, __delattr__, __eq__, __hash__, __getstate__):
            setattr(made, method.__name__, method)
        if "__repr__" not in cls.__dict__:
            made.__repr__ = __repr__  # type: ignore[method-assign]
        return made

    return make if cls is None else make(cls)


def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
    if name in self.__dict__ or name not in type(self).__dataclass_fields__:  # type: ignore[attr-defined]
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    self.__dict__[name] = value


def __delattr__(self: object, name: str) -> None:  # noqa: ARG001, N807
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _key(self: object, names: str) -> tuple[Any, ...]:
    values = self.__dict__
    return tuple([values[name] for name in getattr(self, names)])


def __eq__(self: object, other: object) -> bool:  # noqa: N807
    if self is other:
        return True
    return _key(self, _COMPARED) == _key(other, _COMPARED) if type(self) is type(other) else NotImplemented


def __hash__(self: object) -> int:  # noqa: N807
    """Kept once made: sums over layers look the same block up again and again."""
    values = self.__dict__
    if _HASH not in values:
        values[_HASH] = hash((type(self), _key(self, _HASHED)))
    return int(values[_HASH])


def __getstate__(self: object) -> dict[str, Any]:  # noqa: N807
    """Without the hash, which differs from one process to the next."""
    return {name: value for name, value in self.__dict__.items() if name != _HASH}


def __repr__(self: object) -> str:  # noqa: N807
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)  # type: ignore[arg-type]
    return f"{type(self).__name__}({shown})"
