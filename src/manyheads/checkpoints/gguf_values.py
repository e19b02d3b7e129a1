"""The values of a GGUF header: numbers, strings and arrays, each held against what is left of the file first.

What is kept of a header is small whatever the file's size: long strings and arrays are stepped over.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from itertools import repeat

from manyheads.errors import CheckpointError
from manyheads.quoting import shown

__all__ = ["ArrayInfo", "Cursor", "TextInfo", "read_value"]

_LONGEST_KEPT_ARRAY = 1024  # no model has as many layers; vocabularies are 30 times longer
_LONGEST_KEPT_TEXT = 4096  # bytes; chat templates and licences are longer
_MOST_KEPT = 2**20  # bytes of arrays together
_MAX_ARRAY_DEPTH = 4
_MOST_INNER_ARRAYS = 2**16  # llama.cpp's own reader takes no arrays of arrays at all
_MOST_STRINGS = 2**21  # the largest vocabularies have 262,144 tokens and twice as many merges
_LONGEST_NAME = 2**16 - 1  # of a key, as the format says; tensors' are shorter

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


@dataclass(frozen=True)
class TextInfo:
    """A string of the metadata that was stepped over: how many bytes it has."""

    length: int


class Cursor:
    """A place in a mapped GGUF file that moves on as values are read, and never past the end of the file.

    Also what may still be kept and gone through of this file: `room`, bytes of arrays; `inner_arrays`; `strings`.
    """

    __slots__ = ("_u32", "_u64", "at", "data", "inner_arrays", "order", "room", "size", "strings", "where")

    def __init__(self, data: mmap.mmap, size: int, order: str, where: str) -> None:
        self.data, self.size, self.order, self.where = data, size, order, where
        self.at = 0
        self.room, self.inner_arrays, self.strings = _MOST_KEPT, _MOST_INNER_ARRAYS, _MOST_STRINGS
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

    def text(self, what: str) -> str | TextInfo:
        """A string, bytes that are not UTF-8 replaced; TextInfo where it is longer than anything that is looked at."""
        length = self.u64(f"the length of {what}")
        begin = self.advance(length, what)
        return TextInfo(length) if length > _LONGEST_KEPT_TEXT else self.data[begin : self.at].decode(errors="replace")

    def name(self, what: str) -> str:
        """A key or a tensor's name: these must be UTF-8."""
        length = self.u64(f"the length of {what}")
        begin = self.advance(length, what)
        if length > _LONGEST_NAME:
            raise CheckpointError(f"{self.where}: {what} has {length} bytes; at most {_LONGEST_NAME} are read")
        raw = self.data[begin : self.at]
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
    what = shown(key)
    code = cursor.u32(f"the type of {what}")
    if code == _ARRAY:
        return _read_array(cursor, what, whole=whole, depth=1)
    if code == _STRING:
        return cursor.text(what)
    return _read_numbers(cursor, what, code, 1)[0]


def _scalar(cursor: Cursor, what: str, code: int) -> tuple[str, str, int]:
    found = _SCALARS.get(code)
    if found is None:
        raise CheckpointError(f"{cursor.where}: {what} has value type {code}; GGUF has the types 0 to 12")
    return found


def _read_numbers(cursor: Cursor, what: str, code: int, count: int) -> tuple[object, ...]:
    _, letter, width = _scalar(cursor, what, code)
    begin = cursor.advance(count * width, what)
    values: tuple[object, ...] = struct.unpack_from(f"{cursor.order}{count}{letter}", cursor.data, begin)
    if code == _BOOL:
        if not set(values) <= {0, 1}:
            raise CheckpointError(f"{cursor.where}: {what} is a boolean of neither 0 nor 1: {shown(values)}")
        return tuple(map(bool, values))
    if code in _FLOATS and any(isinstance(value, float) and math.isnan(value) for value in values):
        raise CheckpointError(f"{cursor.where}: {what} is NaN; every number must be one")
    return values


def _read_array(cursor: Cursor, what: str, *, whole: bool, depth: int) -> tuple[object, ...] | ArrayInfo:
    if depth > _MAX_ARRAY_DEPTH:
        raise CheckpointError(f"{cursor.where}: {what}: arrays nested deeper than {_MAX_ARRAY_DEPTH} levels")
    code = cursor.u32(f"the array type of {what}")
    count = cursor.u64(f"the array length of {what}")
    if code == _STRING:
        return _read_strings(cursor, what, count, whole=whole)
    if code == _ARRAY:
        return _read_arrays(cursor, what, count, whole=whole, depth=depth)
    name, _, width = _scalar(cursor, what, code)
    cursor.expect(count, width, f"values of {what}")
    if _kept(cursor, count, 8 * count, whole=whole):
        return _read_numbers(cursor, what, code, count)
    cursor.advance(count * width, what)
    return ArrayInfo(name, count)


def _read_strings(cursor: Cursor, what: str, count: int, *, whole: bool) -> tuple[object, ...] | ArrayInfo:
    cursor.expect(count, 8, f"strings of {what}")
    cursor.strings -= count
    if cursor.strings < 0:
        raise CheckpointError(
            f"{cursor.where}: {what} has {count} strings; at most {_MOST_STRINGS} are read of one file"
        )
    begin = cursor.at
    cursor.skip_strings(count, what)
    if not _kept(cursor, count, cursor.at - begin, whole=whole):
        return ArrayInfo("string", count)
    cursor.at = begin
    return tuple(cursor.text(what) for _ in range(count))


def _read_arrays(cursor: Cursor, what: str, count: int, *, whole: bool, depth: int) -> tuple[object, ...] | ArrayInfo:
    cursor.expect(count, 12, f"arrays of {what}")
    cursor.inner_arrays -= count
    if cursor.inner_arrays < 0:
        most = f"at most {_MOST_INNER_ARRAYS} inside of others are read of one file"
        raise CheckpointError(f"{cursor.where}: {what} has {count} arrays; {most}")
    kept = whole or count <= _LONGEST_KEPT_ARRAY
    inner = [_read_array(cursor, what, whole=whole, depth=depth + 1) for _ in range(count)]
    return tuple(inner) if kept else ArrayInfo("array", count)


def _kept(cursor: Cursor, count: int, size: int, *, whole: bool) -> bool:
    """Whether an array of `count` values, some `size` bytes, is kept; if so, there is less room for others."""
    if whole:
        return True
    if count > _LONGEST_KEPT_ARRAY or size > cursor.room:
        return False
    cursor.room -= size
    return True
