"""The library of facts: what the data files hold, each kind parsed once, when it is first asked for."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from manyheads.errors import ManyheadsError
from manyheads.facts.records import Citation, Convention, Entry, Fact, Formula, QuotedTable, Source
from manyheads.quoting import shown

__all__ = ["conventions", "entries", "facts", "formulas", "glossary", "source", "sources", "tables"]

_CLAIMS = ("claims_derivation", "claims_code", "claims_results", "claims_lesson", "notes")
_FORMULAS = ("formulas", "formulas_latent")
_CITATION = re.compile(r"^(?P<source>[a-z0-9-]+)(?:, (?P<where>.+))? \[(?P<strength>[A-Z])\]$")


@cache
def facts() -> tuple[Fact, ...]:
    """Every claim with its verdict: A1 to A74, B1 to B25 and the notes N1 onwards, in this order."""
    return tuple(
        Fact(
            key=key,
            topic=row["topic"],
            claim=row["claim"],
            verdict=row["verdict"],
            aspect=row.get("aspect", ""),
            right=row.get("right", ""),
            sources=_citations(row),
            arithmetic=tuple(row.get("arithmetic", ())),
        )
        for name in _CLAIMS
        for key, row in _parsed(name).items()
    )


@cache
def formulas() -> tuple[Formula, ...]:
    """Every formula, F1 onwards."""
    symbols = _parsed("formulas")["symbols"]
    return tuple(
        Formula(
            key=key,
            topic=row["topic"],
            name=row["name"],
            symbols=tuple((letter, symbols[letter]) for letter in row["letters"].split()),
            formula=row["formula"],
            where=tuple(_definition(line) for line in row.get("where", ())),
            condition=row.get("condition", ""),
            worked=tuple(row["worked"]),
            sources=_citations(row),
        )
        for name in _FORMULAS
        for key, row in _parsed(name).items()
        if key != "symbols"
    )


@cache
def conventions() -> tuple[Convention, ...]:
    """Every point on which libraries differ, C1 onwards."""
    return tuple(
        Convention(key, row["topic"], row["name"], row["practice"], row["rule"], _citations(row))
        for key, row in _parsed("conventions").items()
    )


@cache
def tables() -> tuple[QuotedTable, ...]:
    """Every table quoted from a paper, and the ones worked out here; their keys are names: vaswani-heads."""
    return tuple(
        QuotedTable(
            key=key,
            topic=row["topic"],
            name=row["name"],
            note=row["note"],
            columns=tuple(row["columns"]),
            rows=tuple(tuple(cells) for cells in row["rows"]),
            sources=_citations(row),
            arithmetic=tuple(row["arithmetic"]),
        )
        for key, row in _parsed("tables").items()
    )


@cache
def entries() -> tuple[Entry, ...]:
    """Everything in the library: claims, formulas, conventions, tables."""
    return (*facts(), *formulas(), *conventions(), *tables())


@cache
def sources() -> tuple[Source, ...]:
    """The bibliographic record of everything that is cited."""
    return tuple(
        Source(key=key, **{**row, "authors": tuple(row["authors"])}) for key, row in _parsed("sources").items()
    )


def source(key: str) -> Source:
    """The record with this key, such as "vaswani2017"; a ManyheadsError naming the nearest when there is none."""
    found = {record.key: record for record in sources()}.get(key.lower())
    if found is None:
        from difflib import get_close_matches

        known = [record.key for record in sources()]
        near = get_close_matches(key.lower(), known, n=3, cutoff=0.3) or known[:3]
        raise ManyheadsError(f"there is no source {shown(key)} among {len(known)}; the nearest are {', '.join(near)}")
    return found


def glossary(kind: str) -> Mapping[str, str]:
    """The words of one kind with their meanings: "topics", "strengths", "verdicts" or "origins"."""
    return {word: str(meaning) for word, meaning in _parsed("topics")[kind].items()}


@cache
def _parsed(name: str) -> dict[str, Any]:
    """One data file; decimals keep the digits they are written with."""
    path = os.path.join(os.path.dirname(__file__), "data", f"{name}.toml")
    with open(path, encoding="utf-8") as file:
        return tomllib.loads(file.read(), parse_float=Decimal)


def _citations(row: Mapping[str, Any]) -> tuple[Citation, ...]:
    return tuple(_citation(text) for text in row["sources"])


def _citation(text: str) -> Citation:
    found = _CITATION.match(text)
    assert found, f"{text!r} is not 'source, where [letter]'"
    return Citation(found["source"], found["where"] or "", found["strength"])


def _definition(line: str) -> tuple[str, str]:
    letter, _, meaning = line.partition(" = ")
    return letter, meaning
