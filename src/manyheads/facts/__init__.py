"""What is known about multi-head attention, with its sources: cited claims, formulas, tables, and the census of models.

Importing this room reads no file; the first look-up of a kind parses its data files once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.facts.arithmetic import Outcome, check
    from manyheads.facts.finding import UnknownFactError, entry, fact, search
    from manyheads.facts.library import conventions, facts, formulas, source, sources, tables
    from manyheads.facts.records import Citation, Convention, Fact, Formula, QuotedTable, Source

__all__ = [
    "Citation",
    "Convention",
    "Fact",
    "Formula",
    "Outcome",
    "QuotedTable",
    "Source",
    "UnknownFactError",
    "check",
    "conventions",
    "entry",
    "fact",
    "facts",
    "formulas",
    "search",
    "source",
    "sources",
    "tables",
]

_HOMES = {
    "Citation": "records",
    "Convention": "records",
    "Fact": "records",
    "Formula": "records",
    "Outcome": "arithmetic",
    "QuotedTable": "records",
    "Source": "records",
    "UnknownFactError": "finding",
    "check": "arithmetic",
    "conventions": "library",
    "entry": "finding",
    "fact": "finding",
    "facts": "library",
    "formulas": "library",
    "search": "finding",
    "source": "library",
    "sources": "library",
    "tables": "library",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
