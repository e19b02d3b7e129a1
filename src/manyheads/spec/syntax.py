"""The small language under the text forms: words, calls, lists and numbers.

    value = word | word(items) | [items]        items = [name=]value, separated by commas

`Reader` walks the words of a text once, from left to right; `build` and `call_text` turn calls into the small frozen
dataclasses of this room (norms, rope scalings, MLPs) and back, by their fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields

from manyheads.errors import SpecError
from manyheads.quoting import cut, shown

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing would cost the command line 2 ms
    from typing import Any, TypeVar

    _T = TypeVar("_T")

__all__ = [
    "LONGEST_TEXT",
    "Call",
    "Reader",
    "build",
    "call_text",
    "flag",
    "number_text",
    "real",
    "short",
    "suggest",
    "whole",
    "word",
]

# Far above any real layer (LongRoPE's two lists make about 3,000 characters), low enough to refuse a wrong file at once.
LONGEST_TEXT = 1_000_000
DEEPEST = 8
# The largest float has 309 digits before the point; a longer word is no number.
LONGEST_NUMBER = 400

_TOKEN = re.compile(r"(-?[A-Za-z0-9_.][A-Za-z0-9_.+\-/]*)|([(),=\[\];:+*])|\s+")
_NUMBER = re.compile(r"-?([0-9]+)?(\.[0-9]*)?(e[+-]?[0-9]+)?", re.IGNORECASE)


class Call:
    """`name(items)`, or a list under the name "[]"; an item is (name or "", value, its place in the text)."""

    __slots__ = ("items", "name")

    def __init__(self, name: str, items: list[tuple[str, Value, int]]) -> None:
        self.name = name
        self.items = items

    def __str__(self) -> str:
        return f"{self.name}(...)" if self.name != "[]" else "[...]"


Value = str | Call


class Reader:
    """The words of a text with their places, and a position that only moves forward."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise SpecError(f"a description must be text, found {short(text)}")
        if len(text) > LONGEST_TEXT:
            raise SpecError(f"a description of {len(text)} characters is too long, at most {LONGEST_TEXT} are read")
        self.text = text.replace("×", "x")
        self.words: list[str] = []
        self.places: list[int] = []
        self.index = 0
        place = 0
        while place < len(text):
            match = _TOKEN.match(self.text, place)
            if match is None:
                raise SpecError(f"character {place + 1}: {short(text[place])} has no meaning in a description")
            if match.lastindex is not None:
                self.words.append(match.group())
                self.places.append(place)
            place = match.end()
        if not self.words:
            raise SpecError("a description is empty; write for example gqa(4096, 32/8x128, rope=1e4)")

    def peek(self, ahead: int = 0) -> str:
        """The word `ahead` of the position, "" beyond the end."""
        index = self.index + ahead
        return self.words[index] if index < len(self.words) else ""

    def take(self) -> str:
        """The next word; moves on."""
        found = self.peek()
        self.index += 1
        return found

    def accept(self, token: str) -> bool:
        """Whether the next word is `token`; if so, moves on."""
        if self.peek() == token:
            self.index += 1
            return True
        return False

    def expect(self, token: str, where: str) -> None:
        """Move over `token`, or raise."""
        if not self.accept(token):
            raise self.error(f"expected {shown(token)} {where}")

    def place(self) -> int:
        """Place in the text of the next word, counted from 1."""
        return 1 + (self.places[self.index] if self.index < len(self.places) else len(self.text))

    def error(self, wanted: str) -> SpecError:
        """A SpecError at the next word: what was `wanted`, what was found."""
        found = short(self.peek()) if self.peek() else "the end"
        return SpecError(f"character {self.place()}: {wanted}, found {found}")

    def name(self, what: str) -> str:
        """The next word, which must be a name (it begins with a letter), in lower case."""
        found = self.peek()
        if not found[:1].isalpha():
            raise self.error(f"expected {what}")
        self.index += 1
        return found.lower()

    def value(self, depth: int = 0) -> Value:
        """A word, a call or a list."""
        if depth > DEEPEST:
            raise self.error(f"brackets are nested more than {DEEPEST} deep")
        if self.accept("["):
            return Call("[]", self._items("]", depth))
        found = self.peek()
        if not found or found in "(),=[];:+*":
            raise self.error("expected a value")
        self.index += 1
        return self.call(found.lower(), depth) if self.peek() == "(" else found

    def call(self, name: str, depth: int = 0) -> Call:
        """The items in parentheses that follow `name`."""
        self.expect("(", f"after {short(name)}")
        return Call(name, self._items(")", depth))

    def _items(self, end: str, depth: int) -> list[tuple[str, Value, int]]:
        items: list[tuple[str, Value, int]] = []
        while not self.accept(end):
            if items:
                self.expect(",", f"or {shown(end)}")
            place = self.place()
            key = self.name("the name of an option") if self.peek(1) == "=" else ""
            if key:
                self.expect("=", f"after {short(key)}")
            items.append((key, self.value(depth + 1), place))
        return items


def short(value: object) -> str:
    """`value` for a message: its repr, cut where it is long."""
    return cut(str(value), 80) if isinstance(value, Call) else shown(value)


def suggest(found: str, valid: Iterable[str]) -> str:
    """ "; did you mean X? Valid: A, B, C": the end of a message about a name that is none of `valid`."""
    from difflib import get_close_matches  # only a failure needs it

    names = list(valid)
    close = get_close_matches(found[:40], names, n=1)
    return (f"; did you mean {close[0]}?" if close else ";") + f" valid: {', '.join(names)}"


def word(name: str, value: Value) -> str:
    """`value` as a bare word."""
    if not isinstance(value, str):
        raise SpecError(f"{name} must be a word, found {short(value)}")
    return value


def whole(name: str, value: Value) -> int:
    """`value` as an integer: digits, or 1e4 and its like where exact."""
    found = _number(name, value)
    if isinstance(found, float):
        if not found.is_integer():
            raise SpecError(f"{name} must be a whole number, found {short(value)}")
        found = int(found)
    return found


def _number(name: str, value: Value) -> int | float:
    """`value` as an int where it is digits only, else as a float."""
    match = _NUMBER.fullmatch(value) if isinstance(value, str) and len(value) <= LONGEST_NUMBER else None
    if match is None or not any(digit.isdigit() for digit in (match[1] or "") + (match[2] or "")):
        raise SpecError(f"{name} must be a number, found {short(value)}")
    return float(match[0]) if match[2] or match[3] else int(match[0])


def real(name: str, value: Value) -> int | float:
    """`value` as a float; as an int only where a float could not hold it."""
    found = _number(name, value)
    try:
        return float(found) if float(found) == found else found
    except OverflowError:
        return found


def flag(name: str, value: Value) -> bool:
    """`value` as yes or no."""
    try:
        return {"yes": True, "true": True, "no": False, "false": False}[value.lower() if isinstance(value, str) else ""]
    except KeyError:
        raise SpecError(f"{name} must be yes or no, found {short(value)}") from None


def reals(name: str, value: Value) -> tuple[int | float, ...]:
    """`value` as a list of floats."""
    if not isinstance(value, Call) or value.name != "[]" or any(key for key, _, _ in value.items):
        raise SpecError(f"{name} must be a list as in [1, 1.5, 2], found {short(value)}")
    return tuple(real(name, item) for _, item, _ in value.items)


_CONVERT: dict[str, Callable[[str, Value], object]] = {
    "int": whole,
    "float": real,
    "bool": flag,
    "str": word,
    "tuple[float, ...]": reals,
}


def number_text(value: float) -> str:
    """The shortest text that reads back as exactly `value`: 1e4, 5e5, 0.0625, 128."""
    if float(value) != value:
        return int.__repr__(int(value))
    value = float(value)
    if value <= 0:
        return "-" + number_text(-value) if value else "0"
    mantissa, _, exponent = float.__repr__(value).partition("e")
    before, _, after = mantissa.partition(".")
    after = "" if after == "0" else after
    digits, power = (before + after).lstrip("0"), int(exponent or 0) - len(after)
    stripped = digits.rstrip("0")
    power += len(digits) - len(stripped)
    scientific = stripped[0] + ("." + stripped[1:] if stripped[1:] else "") + f"e{power + len(stripped) - 1}"
    plain = before + ("." + after if after else "")
    return scientific if exponent or len(scientific) < len(plain) else plain


def build(kind: type[_T], call: Call, fixed: Mapping[str, Any] | None = None) -> _T:
    """A `kind` from a call: values by name, or in the order of the fields; a flag by its bare name.

    Fields in `fixed` are given, not read.
    """
    fixed = fixed or {}
    known = {f.name: str(f.type) for f in fields(kind) if f.name not in fixed}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value, place in call.items:
        set_flag = not key and isinstance(value, str) and known.get(value) == "bool"
        name = str(value) if set_flag else key or next((n for n in known if known[n] != "bool" and n not in values), "")
        if name not in known:
            what = key or str(value)
            raise SpecError(f"character {place}: {short(what)} is not understood in {call.name}" + suggest(what, known))
        if name in values:
            raise SpecError(f"character {place}: {name} is given twice in {call.name}")
        values[name] = True if set_flag else _CONVERT[known[name]](f"{call.name} {name}", value)
    for f in fields(kind):  # type: ignore[arg-type]
        if f.name in known and f.name not in values and f.default is MISSING:
            raise SpecError(f"{call.name} needs {f.name}: {call.name}({', '.join(known)})")
    return kind(**values, **fixed)


def call_text(name: str, value: object, extra: Mapping[str, str] | None = None, *, skip: str = "") -> str:
    """The call that `build` reads as `value`: what has no default in order, the rest by name where it differs."""
    items = []
    for f in fields(value):  # type: ignore[arg-type]
        found = getattr(value, f.name)
        if f.name == skip or (f.default is not MISSING and found == f.default):
            continue
        if isinstance(found, bool):
            items.append(f.name if found else f"{f.name}=no")
            continue
        text = str(found) if f.type == "int" else _value_text(found)
        items.append(text if f.default is MISSING else f"{f.name}={text}")
    items += [f"{key}={text}" for key, text in (extra or {}).items()]
    return f"{name}({', '.join(items)})" if items else name


def _value_text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return "[" + ", ".join(number_text(item) for item in value) + "]"
    assert isinstance(value, int | float)
    return number_text(value)
