"""The values of a GGUF header: numbers, strings and arrays, each held against what is left of the file first."""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from itertools import repeat

from manyheads.errors import CheckpointError
from manyheads.quoting import shown

__all__ = ["ArrayInfo", "Cursor", "read_value"]

_LONGEST_KEPT_ARRAY = 1024  # no model has as many layers; vocabularies are 30 times longer
_MAX_ARRAY_DEPTH = 4

_BOOL, _STRING, _ARRAY = 7, 8, 9

# GGUF's code of a value type: (name, struct's letter, bytes).
_SCALARS = {
    0: ("u8", "B", 1),
    1: ("i8", "b", 1),
    2: ("u16", "H", 2),
    3: ("i16", "h", 2),
    4: ("u32", "I", 4),
    5: ("i32", "i", 4),
    6: ("f32", "f", 4),
    _BOOL: ("bool", "B", 1),
    10: ("u64", "Q", 8),
    11: ("i64", "q", 8),
    12: ("f64", "d", 8),
}
_FLOATS = (6, 12)


@dataclass(frozen=True)
class ArrayInfo:
    """An array of the metadata that was stepped over: the type of its values ("string", "f32") and how many."""

    element_type: str
    length: int


class Cursor:
    """A place in a mapped GGUF file that moves on as values are read, and never past the end of the file."""

    __slots__ = ("_u32", "_u64", "at", "data", "order", "size", "where")

    def __init__(self, data: mmap.mmap, size: int, order: str, where: str) -> None:
        self.data, self.size, self.order, self.where = data, size, order, where
        self.at = 0
        self._u32, self._u64 = struct.Struct(order + "I"), struct.Struct(order + "Q")

    def expect(self, count: int, least_bytes: int, what: str) -> None:
        """Raise unless `count` things of at least `least_bytes` each can follow in this file."""
        left = self.size - self.at
        if count * least_bytes > left:
            raise CheckpointError(
                f"{self.where}: truncated or broken: {count} {what} of at least {least_bytes} bytes cannot follow in"
                f" the {left} bytes after byte {self.at}"
            )

    def advance(self, count: int, what: str) -> int:
        """Step over `count` bytes and return where they began."""
        begin = self.at
        if count > self.size - begin:
            raise CheckpointError(
                f"{self.where}: truncated or broken: {what} takes {count} bytes at byte {begin}, the file has {self.size}"
            )
        self.at = begin + count
        return begin

    def u32(self, what: str) -> int:
        """An unsigned 32-bit integer."""
        value: int = self._u32.unpack_from(self.data, self.advance(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        """An unsigned 64-bit integer."""
        value: int = self._u64.unpack_from(self.data, self.advance(8, what))[0]
        return value

    def text(self, what: str) -> bytes:
        """The bytes of a string."""
        begin = self.advance(self.u64(f"the length of {what}"), what)
        return self.data[begin : self.at]

    def name(self, what: str) -> str:
        """A key or a tensor's name: these must be UTF-8."""
        raw = self.text(what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"{self.where}: {what} is not UTF-8 text: {shown(raw)}") from None

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings. A vocabulary has 50,000 to 260,000, so this loop does one thing only."""
        unpack, data, at = self._u64.unpack_from, self.data, self.at
        try:
            for _ in repeat(None, count):
                at += 8 + unpack(data, at)[0]
        except (struct.error, OverflowError):  # the next length would lie past the end, or past what an offset can be
            at = self.size + 1
        if at > self.size:
            raise CheckpointError(f"{self.where}: truncated or broken: {what} runs past the end, byte {self.size}")
        self.at = at


def read_value(cursor: Cursor, key: str, *, whole: bool) -> object:
    """The value of one metadata pair, from its type on; `whole` keeps an array however long it is."""
    code = cursor.u32(f"the type of {shown(key)}")
    if code == _ARRAY:
        return _read_array(cursor, key, whole=whole, depth=1)
    if code == _STRING:
        return cursor.text(shown(key)).decode(errors="replace")
    return _read_numbers(cursor, key, code, 1)[0]


def _scalar(cursor: Cursor, key: str, code: int) -> tuple[str, str, int]:
    found = _SCALARS.get(code)
    if found is None:
        raise CheckpointError(f"{cursor.where}: {shown(key)} has value type {code}; GGUF has the types 0 to 12")
    return found


def _read_numbers(cursor: Cursor, key: str, code: int, count: int) -> tuple[object, ...]:
    _, letter, width = _scalar(cursor, key, code)
    begin = cursor.advance(count * width, shown(key))
    values: tuple[object, ...] = struct.unpack_from(f"{cursor.order}{count}{letter}", cursor.data, begin)
    if code == _BOOL:
        if not set(values) <= {0, 1}:
            raise CheckpointError(f"{cursor.where}: {shown(key)} is a boolean of neither 0 nor 1: {shown(values)}")
        return tuple(map(bool, values))
    if code in _FLOATS and any(isinstance(value, float) and math.isnan(value) for value in values):
        raise CheckpointError(f"{cursor.where}: {shown(key)} is NaN; every number must be one")
    return values


def _read_array(cursor: Cursor, key: str, *, whole: bool, depth: int) -> tuple[object, ...] | ArrayInfo:
    if depth > _MAX_ARRAY_DEPTH:
        raise CheckpointError(f"{cursor.where}: {shown(key)}: arrays nested deeper than {_MAX_ARRAY_DEPTH} levels")
    code = cursor.u32(f"the array type of {shown(key)}")
    count = cursor.u64(f"the array length of {shown(key)}")
    kept = whole or count <= _LONGEST_KEPT_ARRAY
    if code == _STRING:
        cursor.expect(count, 8, f"strings of {shown(key)}")
        if kept:
            return tuple(cursor.text(shown(key)).decode(errors="replace") for _ in range(count))
        cursor.skip_strings(count, shown(key))
        return ArrayInfo("string", count)
    if code == _ARRAY:
        cursor.expect(count, 12, f"arrays of {shown(key)}")
        inner = (_read_array(cursor, key, whole=whole, depth=depth + 1) for _ in range(count))
        if kept:
            return tuple(inner)
        for _ in inner:
            pass
        return ArrayInfo("array", count)
    name, _, width = _scalar(cursor, key, code)
    cursor.expect(count, width, f"values of {shown(key)}")
    if kept:
        return _read_numbers(cursor, key, code, count)
    cursor.advance(count * width, shown(key))
    return ArrayInfo(name, count)
