"""The kinds of entry in the library of facts: claims, formulas, conventions, quoted tables, and their sources."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

__all__ = ["Citation", "Convention", "Entry", "Fact", "Formula", "QuotedTable", "Source"]


@dataclass(frozen=True)
class Source:
    """Where a fact comes from: a paper, a program, a set of published files, or a derivation made here.

    key           vaswani2017
    kind          inproceedings | preprint | software: works; files | derivation: bundles and work of our own, not citable
    authors       ("Vaswani, Ashish", ...); a group that signs as author is in braces: ("{Gemma Team}",)
    more_authors  True when the list of authors goes on
    arxiv         "1706.03762", "" when there is none
    venue         the proceedings, "" for a preprint
    read          what was read of it: an edition, "not read", or what a second-hand reading rests on
    """

    key: str
    kind: str
    title: str
    authors: tuple[str, ...]
    year: int
    more_authors: bool = False
    arxiv: str = ""
    venue: str = ""
    pages: str = ""
    version: str = ""
    url: str = ""
    read: str = ""


@dataclass(frozen=True)
class Citation:
    """One use of a source: ``vaswani2017, Table 2 [P]``. strength is a letter of ``library.glossary("strengths")``."""

    source: str
    where: str
    strength: str


@dataclass(frozen=True)
class Fact:
    """A claim that is made about attention, judged.

    verdict   right | wrong | imprecise | unverified
    aspect    what of the claim the verdict is about, where it is not the whole: "unit", "as lineage"
    right     the correct value or the condition that the claim leaves out; "" when the claim needs no more
    arithmetic  sums for ``arithmetic.check``
    """

    key: str
    topic: str
    claim: str
    verdict: str
    aspect: str
    right: str
    sources: tuple[Citation, ...]
    arithmetic: tuple[str, ...]


@dataclass(frozen=True)
class Formula:
    """A formula as text that the calculator of this room can run.

    symbols   the letters it uses with their meanings
    formula   an expression in these letters: d*H*q + d*K*(q + v) + H*v*d
    where     letters defined from others: (("o", "Tk - Tq"),)
    worked    examples: "Llama-3-8B: d=4096, H=32, K=8, q=128, v=128 = 41943040 weights"
    condition when it holds, and what else a reader must know
    """

    key: str
    topic: str
    name: str
    symbols: tuple[tuple[str, str], ...]
    formula: str
    where: tuple[tuple[str, str], ...]
    condition: str
    worked: tuple[str, ...]
    sources: tuple[Citation, ...]


@dataclass(frozen=True)
class Convention:
    """A point on which libraries differ: who does what, and what this project does."""

    key: str
    topic: str
    name: str
    practice: str
    rule: str
    sources: tuple[Citation, ...]


@dataclass(frozen=True)
class QuotedTable:
    """A table of a paper, or of values worked out here, with the sums that tie its figures together.

    A cell is a text, a whole number, or a decimal with the digits that the paper prints (5.00); "" was not reported.
    """

    key: str
    topic: str
    name: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | int | Decimal, ...], ...]
    sources: tuple[Citation, ...]
    arithmetic: tuple[str, ...]


Entry = Fact | Formula | Convention | QuotedTable
