"""How numbers and sizes are written on a command line: readers, each of which gives a value or says what the text is not.

A size has a unit as people write it, in small or capital letters. Of tokens, k is 1,024 and M 1,048,576, as model cards
mean them. Of bytes, G and GB are 10^9 and Gi and GiB 2^30; who writes 80G of a card that has 80 GiB asks for less than it
has, never for more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from manyheads.errors import ManyheadsError
from manyheads.quoting import shown

__all__ = ["BYTES_HELP", "above_zero", "count", "dtype", "memory", "one_of", "seed", "several", "share", "tokens"]

BYTES_HELP = "80G = 80GB = 80 x 10^9 bytes, 80GiB = 80 x 2^30"
_TOKENS = {"": 1} | {
    f"{letter}{binary}": 1 << power for letter, power in (("k", 10), ("m", 20)) for binary in ("", "i")
}
_POWERS = {letter: number for number, letter in enumerate("kmgtp", 1)}
_BYTES = {"b": 1} | {
    f"{letter}{kind}{b}": (1024 if kind else 1000) ** power
    for letter, power in _POWERS.items() for kind in ("", "i") for b in ("", "b")
}  # fmt: skip
_MOST = 10**9


def _size(text: str, units: dict[str, int], *, whole: bool) -> int | None:
    """A number and its unit as a whole number; None where it is none, and with a rest too where it must be `whole`."""
    match = re.fullmatch(r"([0-9][0-9_]{0,17})(?:\.([0-9]{1,9}))?\s*([a-z]*)", text.strip().lower())
    if match is None or match[3] not in units:
        return None
    fraction = match[2] or ""
    size, rest = divmod(int(match[1].replace("_", "") + fraction) * units[match[3]], 10 ** len(fraction))
    return None if whole and rest else size


def tokens(least: int = 1, most: int = 10**12) -> Callable[[str], int]:
    """Reads a number of tokens from `least` to `most`: 128000, 128k (131,072), 1M (1,048,576)."""

    def read(text: str) -> int:
        found = _size(text, _TOKENS, whole=True)
        if found is None or not least <= found <= most:
            within = "" if found is None else f" from {least:,} to {most:,}"
            raise ManyheadsError(f"is not a number of tokens{within}; valid: 128000, 128k (131,072), 1M (1,048,576)")
        return found

    return read


def memory(text: str) -> int:
    """Bytes, with their unit: 80GB, 80G, 80GiB, 1.5TB."""
    found = _size(text, _BYTES, whole=False)
    if not found:
        what = "nothing" if found == 0 else "not a size"
        raise ManyheadsError(f"is {what}; valid: 80GB or 80G (10^9 bytes), 80GiB (2^30 bytes), 500MiB")
    return found


def several(read: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Reads what `read` reads, several joined with commas."""

    def every(text: str) -> list[Any]:
        parts = [part.strip() for part in text.split(",")]
        found = []
        for part in parts:
            try:
                found.append(read(part))
            except ManyheadsError as error:
                raise ManyheadsError(f"{f'has {shown(part)}, which ' if len(parts) > 1 else ''}{error}") from None
        return found

    return every


def count(most: int = _MOST, least: int = 1) -> Callable[[str], int]:
    """Reads a whole number from `least` to `most`."""

    def read(text: str) -> int:
        digits = text.strip().replace("_", "")
        if not (digits.isascii() and digits.isdecimal()) or not least <= int(digits[:20]) <= most:
            raise ManyheadsError(f"is not a whole number from {least} to {most:,}")
        return int(digits)

    return read


def seed(text: str) -> int:
    """What every generator of random numbers takes: torch's, numpy's and Python's."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 10 or int(text) >= 1 << 32:
        raise ManyheadsError(f"is not a whole number from 0 to {(1 << 32) - 1:,}")
    return int(text)


def _number(text: str) -> float:
    """A number, or one that lies nowhere."""
    try:
        return float(text)
    except ValueError:
        return float("nan")


def share(text: str) -> float:
    """A number from 0 to below 1."""
    found = _number(text)
    if not 0 <= found < 1:
        raise ManyheadsError("is not a share from 0 to below 1, such as 0.1")
    return found


def above_zero(said: str, below: float = float("inf")) -> Callable[[str], float]:
    """Reads a number above 0 and below `below`; `said` ends the sentence "it is ..." of what is none."""

    def read(text: str) -> float:
        found = _number(text)
        if not 0 < found < below:
            raise ManyheadsError(f"is {said}")
        return found

    return read


def dtype(*names: str) -> Callable[[str], str]:
    """Reads one of the formats `names`, by any word for it: bf16, bfloat16, torch.bfloat16."""

    def read(text: str) -> str:
        from manyheads.cost.dtypes import dtype_among

        try:
            return dtype_among(text, names, "")
        except ManyheadsError:
            raise ManyheadsError(f"is not one of {', '.join(names)}") from None

    return read


def one_of(*names: str) -> Callable[[str], str]:
    """Reads one of `names`."""

    def read(text: str) -> str:
        if text not in names:
            raise ManyheadsError(f"is not one of {', '.join(names)}" if len(names) > 1 else f"is not {names[0]}")
        return text

    return read
