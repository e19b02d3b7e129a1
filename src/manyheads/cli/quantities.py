"""Sizes as people write them: contexts in words (128k, 128000, 1m), memory with its unit (80GB, 80GiB)."""

from __future__ import annotations

import re

from manyheads.errors import ManyheadsError
from manyheads.quoting import shown

__all__ = ["contexts", "memory", "positive", "share"]

_POWERS_OF_TWO = {"": 1, "k": 1 << 10, "m": 1 << 20}
_BYTES = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "pb": 10**15,
    "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "pib": 1 << 50,
}  # fmt: skip


def contexts(text: str, *, option: str = "--context") -> list[int]:
    """Contexts from "8k,32k,128000": `k` is 1,024 tokens and `m` 1,048,576, so 128k = 131,072; a bare number is itself."""
    return [_context(part.strip(), f"{option} {shown(text)}") for part in text.split(",")]


def _context(part: str, asked: str) -> int:
    match = re.fullmatch(r"([0-9][0-9_]{0,15})(k|m|)", part.lower())
    tokens = int(match[1].replace("_", "")) * _POWERS_OF_TWO[match[2]] if match else 0
    if not tokens:
        raise ManyheadsError(
            f"{asked}: {shown(part)} is not a number of tokens; valid: 128000, 128k (131,072), 1m (1,048,576), "
            "several joined with commas"
        )
    return tokens


def memory(text: str) -> int:
    """Bytes from "80GB" (80·10^9) or "80GiB" (80·2^30); fractions are allowed where they give whole bytes."""
    match = re.fullmatch(r"([0-9]{1,15})(?:\.([0-9]{1,9}))?\s*([a-z]+)", text.strip().lower())
    if match is None or match[3] not in _BYTES:
        raise ManyheadsError(
            f"--memory {shown(text)} is not a size; valid: 80GB (10^9 bytes), 80GiB (2^30 bytes), 500MiB"
        )
    fraction = match[2] or ""
    size: int = int(match[1] + fraction) * _BYTES[match[3]] // 10 ** len(fraction)
    if not size:
        raise ManyheadsError(f"--memory {shown(text)} is nothing; valid: 80GB (10^9 bytes), 80GiB (2^30 bytes), 500MiB")
    return size


def positive(option: str, text: str, most: int = 10**9) -> int:
    """An integer in [1, most], or an error that names the option."""
    digits = text.strip().replace("_", "")
    if not (digits.isascii() and digits.isdecimal()) or not 1 <= int(digits[:20]) <= most:
        raise ManyheadsError(f"{option} {shown(text)} is not a whole number from 1 to {most:,}")
    return int(digits)


def share(option: str, text: str) -> float:
    """A number from 0 to below 1, or an error that names the option."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < 1:
        raise ManyheadsError(f"{option} {shown(text)} is not a share from 0 to below 1, such as 0.1")
    return found
