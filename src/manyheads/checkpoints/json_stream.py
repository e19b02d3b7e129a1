"""JSON objects too large to build: read member by member, each value taken or passed over as the caller says.

A header of 100 MB takes the memory of its bytes and of what is kept of it, not thirty times that, and what is passed
over is not looked at more closely than its end needs. The parser of `json_config` stands for everything small.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NoReturn

from manyheads.checkpoints.json_config import parse_json_object
from manyheads.errors import CheckpointError
from manyheads.quoting import shown

__all__ = ["LONGEST_NAME", "JsonStream"]

LONGEST_NAME = 2**16 - 1
"""Bytes of a member's name: the most that GGUF allows a key, taken for both formats."""

_SMALL = 2**20

# Possessive repeats (*+): nothing is tried twice, so time and memory stay those of one look at each byte.
_WS = rb"[ \t\n\r]*+"
_STRING = rb'"([^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+)"'
_OPEN = re.compile(_WS + rb"\{" + _WS)
_KEY = re.compile(_WS + _STRING + _WS + rb":" + _WS)
_NEXT = re.compile(_WS + rb"([,}])")
_CLOSE = re.compile(_WS + rb"\}")
_TEXT = re.compile(_STRING)
_REST = re.compile(_WS)
_INSIDE = rb'(?:[^\[\]{}"]++|' + _STRING + rb")*+"
_OBJECT = re.compile(rb"\{" + _INSIDE + rb"(?:\[" + _INSIDE + rb"\]" + _INSIDE + rb")*+\}")
_FLAT = re.compile(_STRING + rb'|[^\[\]{}",]++|\[' + _INSIDE + rb"\]|" + _OBJECT.pattern)


class JsonStream:
    """A place in the bytes of one JSON object; each method reads on from it, or raises CheckpointError with the place."""

    def __init__(self, raw: bytes, where: str) -> None:
        self._raw, self._where, self._at = raw, where, 0

    def members(self, problem: str = "") -> Iterator[str]:
        """The name of each member of an object that begins here. The caller takes its value before the next is asked for.

        problem  what to say where there is no object
        """
        self._take(_OPEN, problem or "expected an object {...}")
        closed = _CLOSE.match(self._raw, self._at)
        if closed:
            self._at = closed.end()
            return
        while True:
            yield self._name(self._take(_KEY, "expected a name in quotation marks and a colon"))
            if self._take(_NEXT, "expected a comma or a closing brace")[1] == b"}":
                return

    def text(self, problem: str, most: int | None = None) -> str | None:
        """The string that begins here; None where it has more than `most` bytes, and is passed over."""
        found = self._take(_TEXT, problem)
        return None if most is not None and _length(found) > most else self._decoded(found)

    def flat_object(self, most: int) -> bytes | None:
        """The bytes of an object of at most `most` bytes, no other object in it nor lists of lists; None where none begins here."""
        found = _OBJECT.match(self._raw, self._at, self._at + most)
        if found is None:
            return None
        self._at = found.end()
        return found[0]

    def skip(self) -> None:
        """Pass over a value: a string, a number, a list of these, or an object of such."""
        self._take(_FLAT, "expected a value without lists of lists or objects of objects")

    def end(self) -> None:
        """Raise unless nothing but white space follows."""
        self._at = self._take(_REST, "").end()
        if self._at < len(self._raw):
            self.refuse("expected the end")

    def refuse(self, problem: str) -> NoReturn:
        """Raise for what stands here; what is small is parsed first, for a message that names line and column."""
        if len(self._raw) <= _SMALL:
            parse_json_object(self._raw, where=self._where)
        found = shown(self._raw[self._at : self._at + 80])
        raise CheckpointError(f"{self._where}: {problem}; found {found} at byte {self._at} of {len(self._raw)}")

    def _take(self, pattern: re.Pattern[bytes], problem: str) -> re.Match[bytes]:
        found = pattern.match(self._raw, self._at)
        if found is None:
            self.refuse(problem)
        self._at = found.end()
        return found

    def _name(self, found: re.Match[bytes]) -> str:
        if _length(found) > LONGEST_NAME:
            self._at = found.start(1)
            self.refuse(f"a name of {_length(found)} bytes; at most {LONGEST_NAME} are read")
        return self._decoded(found)

    def _decoded(self, found: re.Match[bytes]) -> str:
        raw = found[1]
        try:
            text: str = json.loads(b'"%s"' % raw) if b"\\" in raw else raw.decode()
            text.encode()  # half a surrogate pair, which no file name or terminal could hold
        except ValueError:
            self._at = found.start()
            self.refuse("expected text in UTF-8 without half surrogate pairs")
        return text


def _length(found: re.Match[bytes]) -> int:
    """Bytes of a string, without making it."""
    return found.end(1) - found.start(1)
