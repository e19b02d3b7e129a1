"""A small calculator that cannot be made to do anything but arithmetic, and the sums that facts carry.

A sum is one line of a data file: ``label: left = right unit``. The relation is ``=`` (exactly equal), ``~`` (equal
once the left side is rounded, half up, to the decimals that the right side states), ``<``, ``>`` or ``!=``. Every
number is kept as an exact fraction, so 38.1 means 381/10 and 10**40 loses nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

from manyheads.errors import ManyheadsError
from manyheads.quoting import shown

__all__ = ["Outcome", "SumError", "check", "evaluate", "grouped"]

_LONGEST = 400
_LARGEST_EXPONENT = 64
_LARGEST_BITS = 4096
_SUM = re.compile(
    r"^(?:(?P<label>[^:=<>~]*[^:=<>~ ]): )?(?P<left>[^=<>~!]+) (?P<relation>=|~|<|>|!=) (?P<right>[^=<>~!]+)$"
)
_RIGHT = re.compile(r"^(?P<value>[0-9+\-*/(). _]*[0-9)])(?: (?P<unit>[^\d+\-*/(. ].*))?$")
_SHOWN = {"~": "≈", "!=": "≠"}


class SumError(ManyheadsError, ValueError):
    """A sum that cannot be read, or that does not come out as it says; the message shows both values."""


@dataclass(frozen=True)
class Outcome:
    """A sum that has been worked out again and holds.

    label     what is being computed, "" when the sum explains itself
    text      the sum as a reader sees it, digits grouped: 2·80·64·128·2·128,000 = 335,544,320,000 B
    value     the exact value of the left side
    unit      what the value counts, "" for a bare number
    """

    label: str
    text: str
    value: Fraction
    unit: str


def evaluate(expression: str, names: Mapping[str, Fraction | int] | None = None) -> Fraction:
    """The exact value of an expression of numbers, + - * / // **, parentheses, min(), max() and the given names.

    Exponents must be whole and at most 64 in size, results at most 4096 bits: a data file cannot make this slow.
    Raises SumError for anything else.
    """
    if len(expression) > _LONGEST:
        raise SumError(f"expression of {len(expression)} characters; at most {_LONGEST} are read")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise SumError(f"{shown(expression)} is not arithmetic; valid: numbers and names with + - * / // **") from None
    try:
        return _value(tree.body, names or {})
    except ZeroDivisionError:
        raise SumError(f"{shown(expression)} divides by zero") from None


def _value(node: ast.expr, names: Mapping[str, Fraction | int]) -> Fraction:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() as whole):
            return _bounded(Fraction(whole))
        case ast.Constant(value=float() as decimal) if isfinite(decimal):
            return _bounded(Fraction(str(decimal)))
        case ast.Name(id=name) if name in names:
            return Fraction(names[name])
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.BinOp(left=left, op=operator, right=right):
            return _combined(operator, _value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id="min" | "max" as which), args=[first, second], keywords=[]):
            pick: Callable[[Fraction, Fraction], Fraction] = min if which == "min" else max
            return pick(_value(first, names), _value(second, names))
    raise SumError(f"{shown(ast.unparse(node))} is not arithmetic; valid: numbers, {', '.join(names) or 'no names'}")


def _combined(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return _bounded(left + right)
        case ast.Sub():
            return _bounded(left - right)
        case ast.Mult():
            return _bounded(left * right)
        case ast.Div():
            return _bounded(left / right)
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Pow():
            return _power(left, right)
    raise SumError(f"operator {type(operator).__name__} is not arithmetic; valid: + - * / // **")


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _LARGEST_EXPONENT:
        raise SumError(f"exponent {exponent}; valid: whole numbers from -{_LARGEST_EXPONENT} to {_LARGEST_EXPONENT}")
    size = max(base.numerator.bit_length(), base.denominator.bit_length())
    if size * abs(int(exponent)) > _LARGEST_BITS:
        raise SumError(f"{base} to the power {exponent} is longer than {_LARGEST_BITS} bits")
    return Fraction(base ** int(exponent))


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _LARGEST_BITS:
        raise SumError(f"a number longer than {_LARGEST_BITS} bits")
    return value


def check(line: str, names: Mapping[str, Fraction | int] | None = None) -> Outcome:
    """Work out one sum again and return it ready to be shown.

    Raises SumError when the line cannot be read or when the relation does not hold.
    """
    label, left, relation, right, unit = _split(line)
    value, stated = evaluate(left, names), evaluate(right)
    if not _holds(value, relation, stated, right):
        raise SumError(
            f"{shown(line)} does not hold: the left side is {_plain(value)}, the right side {_plain(stated)}"
        )
    tail = f" {unit}" if unit else ""
    text = f"{grouped(left)} {_SHOWN.get(relation, relation)} {grouped(right)}{tail}"
    return Outcome(label, text, value, unit)


def _split(line: str) -> tuple[str, str, str, str, str]:
    found = _SUM.match(line)
    right = _RIGHT.match(found["right"]) if found else None
    if found is None or right is None:
        raise SumError(f"{shown(line)} is not a sum; valid: 'label: left = right unit' with one of = ~ < > !=")
    return found["label"] or "", found["left"].strip(), found["relation"], right["value"], right["unit"] or ""


def _holds(value: Fraction, relation: str, stated: Fraction, written: str) -> bool:
    if relation == "~":
        return rounded(value, len(written.partition(".")[2])) == stated
    return {"=": value == stated, "<": value < stated, ">": value > stated, "!=": value != stated}[relation]


def rounded(value: Fraction, decimals: int) -> Fraction:
    """Round half away from zero, as a reader with a pencil does, to a number of decimals."""
    scale = 10**decimals
    magnitude = (abs(value) * scale * 2 + 1) // 2
    return Fraction(-magnitude if value < 0 else magnitude, scale)


def _plain(value: Fraction) -> str:
    return f"{value.numerator:,}" if value.denominator == 1 else f"{float(value):,.6g}"


def grouped(expression: str) -> str:
    """An expression for the eye: · for times, thousands separated by commas from five digits on."""
    powers = expression.replace("**", "^").replace("//", "÷")
    spaced = re.sub(r"\s*\*\s*", "·", powers).replace("÷", " // ")
    return re.sub(r"(?<![\w.])\d{5,}(?![\w])", lambda digits: f"{int(digits[0]):,}", re.sub(r"\s+", " ", spaced))
