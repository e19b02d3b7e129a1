"""Answers on a pipe that the user's code can write to as well: each one starts with a token that nobody can guess.

A frame is the token, the length of the text in bytes, the text. Whatever else arrives is counted and left out. No torch
here: three processes use it, and two of them have nothing to do with tensors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["CLOSED", "Frames", "frame", "new_token", "send"]

CLOSED = 113  # exit status of a process that can no longer answer

_LENGTH = 8  # hexadecimal digits


def new_token() -> str:
    """128 random bits, in letters."""
    return os.urandom(16).hex()


def frame(token: str, message: Mapping[str, Any]) -> bytes:
    """The bytes of one message."""
    text = json.dumps(message).encode()
    return token.encode() + f"{len(text):0{_LENGTH}x}".encode() + text


def send(descriptor: int, token: str, message: Mapping[str, Any]) -> None:
    """Writes one message whole; OSError where the other side or the descriptor is gone."""
    left = memoryview(frame(token, message))
    while left:
        left = left[os.write(descriptor, left) :]


class Frames:
    """The messages in a stream of bytes. `strange` counts the bytes that belong to none."""

    def __init__(self, token: str) -> None:
        self.strange = 0
        self._token = token.encode()
        self._buffer = b""

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The messages that are complete with these bytes."""
        self._buffer += data
        head = len(self._token) + _LENGTH
        while True:
            self._skip_to_token()
            if len(self._buffer) < head:
                return
            length = _number(self._buffer[len(self._token) : head])
            if length is None:
                self._drop(len(self._token))
                continue
            if len(self._buffer) < head + length:
                return
            message = _message(self._buffer[head : head + length])
            if message is None:
                self._drop(len(self._token))
                continue
            self._buffer = self._buffer[head + length :]
            yield message

    def _skip_to_token(self) -> None:
        at = self._buffer.find(self._token)
        if at < 0:  # what may be the start of a token is kept
            at = max(len(self._buffer) - len(self._token) + 1, 0)
            while at < len(self._buffer) and not self._token.startswith(self._buffer[at:]):
                at += 1
        self._drop(at)

    def _drop(self, count: int) -> None:
        self.strange += count
        self._buffer = self._buffer[count:]


def _number(digits: bytes) -> int | None:
    try:
        return int(digits, 16)
    except ValueError:
        return None


def _message(text: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(text)
    except ValueError:  # damaged by bytes that came between
        return None
    return message if isinstance(message, dict) else None
