"""A layer's name for files: readable, short, made of lower-case letters, digits, `-` and `.` only."""

from __future__ import annotations

from manyheads.spec.attention import AttentionSpec
from manyheads.spec.syntax import Call, Reader
from manyheads.spec.text import to_text

__all__ = ["LONGEST_SLUG", "slug"]

LONGEST_SLUG = 80
# Hexadecimal digits of a digest: with 48 bits, a million layers share one with a chance of 1 in 500.
_DIGITS = 12


def slug(spec: AttentionSpec) -> str:
    """The file name of a layer, as in `gqa-4096-32-8x128-rope1e4`, made of its text form.

    Where that says what a file name cannot (parentheses, lists) or is longer than 80 characters, options are left out
    and a digest of the whole text stands at the end, so that different layers keep different names.
    """
    text = to_text(spec)
    call = Reader(text).value()
    assert isinstance(call, Call)
    words = [call.name]
    for key, value, _ in call.items:
        if isinstance(value, str):
            words.append((key + ("" if value == "yes" else value)).replace("_", "").replace("/", "-").replace("+", "-"))
    name = "-".join(words).lower()
    if len(words) == 1 + len(call.items) and len(name) <= LONGEST_SLUG:
        return name
    return name[: LONGEST_SLUG - _DIGITS - 1].rstrip("-.") + "-" + _digest(text)


def _digest(text: str) -> str:
    from hashlib import sha256  # most layers need none

    return sha256(text.encode()).hexdigest()[:_DIGITS]
