"""Text from files, such as a model's name in a config, made safe to print on a terminal."""

from __future__ import annotations

__all__ = ["visible"]

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
_KEEPING_LINES = {code: escape for code, escape in _ESCAPES.items() if code != 0x0A}


def visible(text: str, *, keep_lines: bool = False) -> str:
    """`text` with control characters, direction overrides and line separators written as escapes.

    A terminal obeys them: an escape sequence in a config could otherwise recolour or rewrite what is on the screen.
    """
    return text.translate(_KEEPING_LINES if keep_lines else _ESCAPES)
