"""How what a user gave stands in a message: on one line, cut where it is long, and nothing a terminal would obey.

    shown(value)       a value as repr writes it: 'llama', [1, 2, 3], {'a': 1...
    shown_name(text)   a name without quotation marks, where it needs none
    shown_path(path)   a path: the same, and longer
    few(names)         the first of many names, and how many more there are

Values come out of files that nobody vouches for: a key can be megabytes long, a list can hold a million axes. Only as
much of a value is looked at as is shown.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

__all__ = ["cut", "few", "one_line", "shown", "shown_name", "shown_path", "visible"]

_LONGEST_VALUE = 80
_LONGEST_PATH = 240

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))} | {
    code: f"\\u{code:04x}" for code in (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
}
_KEEPING_LINES = {code: escape for code, escape in _ESCAPES.items() if code != 0x0A}


def visible(text: str, *, keep_lines: bool = False) -> str:
    """`text` with control characters, direction overrides and line separators written as escapes.

    A terminal obeys them: an escape sequence in a config could otherwise recolour or rewrite what is on the screen.
    """
    return text.translate(_KEEPING_LINES if keep_lines else _ESCAPES)


def one_line(text: str, most: int) -> str:
    """`text` on one visible line of at most `most` characters: line breaks and other white space become a space."""
    # Cut before it is looked through, and again when its escapes have made it longer.
    return cut(visible(" ".join(cut(text, 2 * most).split())), most)


def cut(text: str, most: int) -> str:
    """`text`, its middle replaced by "..." where it is longer than `most` characters: a message ends with what helps."""
    if len(text) <= most:
        return text
    end = (most - 3) // 2
    return f"{text[: most - 3 - end]}...{text[-end:]}"


def shown(value: object, most: int = _LONGEST_VALUE) -> str:
    """`value` as repr writes it, on one line of at most `most` characters, the rest "..."."""
    text = ""
    for piece in _pieces(value, most):
        text += piece
        if len(text) > most:
            return text[: most - 3] + "..."
    return text


def shown_name(text: object, most: int = _LONGEST_VALUE) -> str:
    """The name `text` as it is where it can be printed, else quoted with escapes; its middle "..." where it is longer."""
    name = str(text)
    part = cut(name, most)
    return part if part.isprintable() and part else cut(ascii(part), most)


def shown_path(path: str | os.PathLike[str]) -> str:
    """`path` as `shown_name` shows a name; both ends of a long one, since its beginning and its end tell it apart."""
    return shown_name(os.fspath(path), _LONGEST_PATH)


def few(names: Iterable[object], most: int = 3) -> str:
    """The first of `names` with commas between them, each as `shown_name` shows it, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(map(shown_name, every[:most])) + more


def _pieces(value: object, most: int) -> Iterator[str]:
    """The repr of `value` bit by bit, so that whoever has enough of it can stop."""
    if isinstance(value, str | bytes):
        yield repr(value[: most + 1])
    elif type(value) in (list, tuple):
        yield from _row(value, most)  # type: ignore[arg-type]
    elif isinstance(value, Mapping):
        yield "{"
        for number, (key, each) in enumerate(islice(value.items(), most)):
            yield ", " if number else ""
            yield from _pieces(key, most)
            yield ": "
            yield from _pieces(each, most)
        yield "}"
    else:
        try:
            yield visible(" ".join(repr(value).split()))
        except (ValueError, RecursionError):  # Python refuses to print a number of 5,000 digits at all
            yield f"({type(value).__name__} too large to print)"


def _row(row: list[object] | tuple[object, ...], most: int) -> Iterator[str]:
    begin, end = "[]" if isinstance(row, list) else "()"
    yield begin
    for number, each in enumerate(islice(row, most)):
        yield ", " if number else ""
        yield from _pieces(each, most)
    yield f",{end}" if isinstance(row, tuple) and len(row) == 1 else end
