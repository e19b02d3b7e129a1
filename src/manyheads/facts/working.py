"""The sums of an entry worked out again: the arithmetic of claims and tables, the examples of formulas."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from manyheads.facts.arithmetic import Outcome, SumError, check, evaluate
from manyheads.facts.records import Convention, Entry, Formula
from manyheads.quoting import shown

__all__ = ["outcomes", "run_formula"]

_EXAMPLE = re.compile(r"^(?P<label>.+): (?P<given>\w+=\S+(?:, \w+=\S+)*) (?P<result>[=~] .+)$")


def outcomes(entry: Entry) -> tuple[Outcome, ...]:
    """Every sum of an entry, computed now. Raises SumError, naming the entry, when one does not hold."""
    try:
        match entry:
            case Formula():
                return tuple(_example(entry, line) for line in entry.worked)
            case Convention():
                return ()
            case _:
                return tuple(check(line) for line in entry.arithmetic)
    except SumError as failure:
        raise SumError(f"{entry.key}: {failure}") from failure


def run_formula(formula: Formula, letters: Mapping[str, int | Fraction]) -> Fraction:
    """The value of a formula for the given letters, such as {"d": 4096}, which must be all that it needs.

    Raises SumError when a letter is missing.
    """
    names = {letter: Fraction(value) for letter, value in letters.items()}
    for letter, meaning in formula.where:
        names[letter] = evaluate(meaning, names)
    return evaluate(formula.formula, names)


def _example(formula: Formula, line: str) -> Outcome:
    found = _EXAMPLE.match(line)
    if found is None:
        raise SumError(f"{shown(line)} is not an example; valid: 'label: letter=value, ... = value unit'")
    letters: dict[str, int | Fraction] = {}
    for given in found["given"].split(", "):
        letter, _, value = given.partition("=")
        letters[letter] = evaluate(value)
    value = run_formula(formula, letters)
    fraction = f"{value.numerator}/{value.denominator}"
    outcome = check(f"{fraction} {found['result']}")
    given = found["given"].replace("=", " = ")
    result = outcome.text.partition(" ")[2].removeprefix("= ")
    return Outcome(found["label"], f"{given} gives {result}", value, outcome.unit)
