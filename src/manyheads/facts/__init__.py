"""What is known about multi-head attention, with its sources: cited claims, formulas, tables, and the census of models.

Importing this room reads no file; the first look-up of a kind parses its data files once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from manyheads.facts.arithmetic import Outcome, check
    from manyheads.facts.finding import UnknownFactError, entry, fact, search
    from manyheads.facts.library import conventions, facts, formulas, source, sources, tables
    from manyheads.facts.records import Citation, Convention, Fact, Formula, QuotedTable, Source

_HOME = {
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


def __getattr__(name: str) -> object:
    """Load the module that holds ``name`` when it is first asked for (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
