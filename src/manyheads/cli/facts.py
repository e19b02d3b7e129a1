"""`manyheads facts`: every cited claim, formula, convention and table, with verdict, source and its arithmetic run again."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from manyheads.cli.common import UsageError, emit, progress, write_stdout
from manyheads.cli.options import JSON, OUTPUT, Option, add
from manyheads.quoting import shown

if TYPE_CHECKING:
    from manyheads.facts.arithmetic import Outcome
    from manyheads.facts.records import Citation, Convention, Entry, Fact, Formula, QuotedTable, Source
    from manyheads.report import Report, Table

__all__ = ["configure", "run"]

SCHEMA = "manyheads.facts/1"
_VERDICTS = (
    "right",
    "wrong",
    "imprecise",
    "unverified",
)  # the data file's words, here too so that --help reads no file
_STYLES = ("bibtex", "csl", "ris")


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument(
        "words",
        metavar="KEY|WORD",
        nargs="*",
        help="keys (A38, F6, vaswani-heads) for full records, or words that must all occur; neither: an overview",
    )
    add(parser, Option("--verdict", "only claims with this verdict", choices=_VERDICTS))
    add(parser, Option("--table", "a table quoted from a paper, such as vaswani-heads", "NAME"))
    add(parser, Option("--cite", "the works that the entries cite, for a reference manager", choices=_STYLES))
    add(parser, JSON)
    add(parser, OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Shows what was asked for; 1 when nothing in the library answers."""
    if options.cite and options.json:
        raise UsageError("facts: --cite prints a bibliography and --json the entries; ask for one of them")
    found = _chosen(options)
    if not found:
        _explain_nothing(options)
        if options.json:
            emit(_report(found, options), options)
        return 1
    if options.cite:
        return _cite(found, options)
    emit(_report(found, options), options)
    return 0


def _asks_for_everything(options: argparse.Namespace) -> bool:
    return not (options.words or options.table or options.verdict)


def _chosen(options: argparse.Namespace) -> tuple[Entry, ...]:
    from manyheads.facts.library import entries
    from manyheads.facts.records import Fact

    if options.table is not None:
        if options.words or options.verdict:
            raise UsageError("facts: --table shows one table by its name and takes no words and no --verdict beside it")
        return (_table_named(options.table),)
    found = _matching(options.words) if options.words else entries()
    if options.verdict is None:
        return found
    return tuple(entry for entry in found if isinstance(entry, Fact) and entry.verdict == options.verdict)


def _table_named(name: str) -> QuotedTable:
    from manyheads.facts.finding import nearest_keys
    from manyheads.facts.library import tables

    for table in tables():
        if table.key == name.lower():
            return table
    near = ", ".join(nearest_keys(name, among=[table.key for table in tables()]))
    raise UsageError(f"facts: there is no table {shown(name)} among {len(tables())}; the nearest are {near}")


def _matching(words: Sequence[str]) -> tuple[Entry, ...]:
    """The entries of the keys where all words are keys, what the search finds where they are not."""
    from manyheads.facts.finding import UnknownFactError, entry, is_key_like, search
    from manyheads.facts.library import entries

    known = {each.key.upper() for each in entries()}
    unknown = [word for word in words if is_key_like(word) and word.upper() not in known]
    if all(word.upper() in known or is_key_like(word) for word in words):
        return tuple(dict.fromkeys(entry(word) for word in words))
    found = search(" ".join(words))
    if not found and unknown:
        raise UnknownFactError(unknown[0])
    return found


def _explain_nothing(options: argparse.Namespace) -> None:
    """One line on stderr: what was looked for, and how often each word occurs alone."""
    from manyheads.facts.finding import search

    verdict = f" with the verdict {options.verdict}" if options.verdict else ""
    alone = [f"{word} {len(search(word))}" for word in options.words] if len(options.words) > 1 else []
    counts = f" (entries with one word alone: {', '.join(alone)})" if alone else ""
    asked = " ".join(options.words)
    progress(
        f"nothing{verdict} holds {shown(asked)}{counts}; 'manyheads facts' lists the topics, fewer words find more"
    )


def _cite(found: tuple[Entry, ...], options: argparse.Namespace) -> int:
    from manyheads.facts import citing
    from manyheads.facts.library import sources

    if _asks_for_everything(options):
        works: tuple[Source, ...] = tuple(work for work in sources() if citing.is_work(work))
    else:
        works = citing.cited_works(found)
    if not works:
        keys = ", ".join(entry.key for entry in found[:5])
        progress(f"{keys}: derived here or read from model files, so there is no work to cite")
        return 1
    text = citing.STYLES[options.cite](works)
    if options.output is None:
        write_stdout(text)
        return 0
    from manyheads.report.files import write_whole

    write_whole(options.output, text)
    progress(f"wrote {options.output}")
    return 0


def _report(found: tuple[Entry, ...], options: argparse.Namespace) -> Report:
    from manyheads.report import Report

    data = _data(found) if options.json else {}
    if options.json:
        return Report(title="", data=data)
    if _asks_for_everything(options):
        return _overview(found)
    if len(found) > 1 and not _all_keys(options.words, found):
        return _listing(found, options)
    title = f"{len(found)} entries" if len(found) > 1 else f"{found[0].key}: {_heading(found[0])}"
    return Report(title=title, tables=tuple(_record(entry) for entry in found), notes=_strengths(found))


def _all_keys(words: Sequence[str], found: tuple[Entry, ...]) -> bool:
    return {word.upper() for word in words} >= {entry.key.upper() for entry in found}


def _overview(found: tuple[Entry, ...]) -> Report:
    from manyheads.facts.library import glossary
    from manyheads.facts.records import Fact, QuotedTable
    from manyheads.report import Column, Report, Table

    verdicts = Counter(entry.verdict for entry in found if isinstance(entry, Fact))
    origins = Counter(entry.key[0] for entry in found if not isinstance(entry, QuotedTable))
    topics = Counter(entry.topic for entry in found)
    named = [(entry.key, entry.name) for entry in found if isinstance(entry, QuotedTable)]

    def counted(question: str, kind: str, counts: Counter[str], heading: str) -> Table:
        columns = (Column(heading), Column("entries", align="right"), Column("meaning"))
        rows = tuple((word, str(counts[word]), meaning) for word, meaning in glossary(kind).items())
        return Table(question, columns, rows)

    return Report(
        title="What is known about multi-head attention, with sources",
        tables=(
            counted("What do the keys stand for?", "origins", origins, "keys"),
            counted("How do the claims stand?", "verdicts", verdicts, "verdict"),
            counted("What are the entries about?", "topics", topics, "topic"),
            Table("Which tables are quoted?", (Column("--table"), Column("holds")), tuple(named)),
        ),
        notes=(
            "manyheads facts A38 F6 shows full records; their arithmetic is worked out again each time.",
            "manyheads facts cache training searches: all words must occur.",
            "manyheads facts --verdict wrong lists the mistakes; add words to narrow it.",
            "manyheads facts A54 --cite bibtex prints the sources; csl and ris are the other forms.",
        ),
        next_command="manyheads facts A38",
    )


def _listing(found: tuple[Entry, ...], options: argparse.Namespace) -> Report:
    from manyheads.report import Column, Report, Table

    columns = (Column("key"), Column("verdict or kind"), Column("claim → what is right"))
    rows = tuple((entry.key, _kind(entry), _summary(entry)) for entry in found)
    holding = f" that hold {shown(' '.join(options.words))}" if options.words else ""
    verdict = f" with the verdict {options.verdict}" if options.verdict else ""
    return Report(
        title=f"{len(found)} entries{verdict}{holding}",
        tables=(Table("Which are they?" if options.verdict else "Which are they, best first?", columns, rows),),
        next_command=f"manyheads facts {found[0].key}",
    )


def _kind(entry: Entry) -> str:
    from manyheads.facts.records import Convention, Fact, Formula

    if isinstance(entry, Fact):
        return entry.verdict
    return "formula" if isinstance(entry, Formula) else "convention" if isinstance(entry, Convention) else "table"


def _verdict(fact: Fact) -> str:
    return f"{fact.verdict} ({fact.aspect})" if fact.aspect else fact.verdict


def _heading(entry: Entry) -> str:
    from manyheads.facts.records import Fact

    return _verdict(entry) if isinstance(entry, Fact) else _kind(entry)


def _summary(entry: Entry) -> str:
    from manyheads.facts.arithmetic import grouped
    from manyheads.facts.records import Convention, Fact, Formula

    match entry:
        case Fact():
            return f"{entry.claim}\n→ {entry.right}" if entry.right else entry.claim
        case Formula():
            return f"{entry.name}\n→ {grouped(entry.formula)}"
        case Convention():
            return f"{entry.name}\n→ {entry.rule}"
        case _:
            return entry.name


def _record(entry: Entry) -> Table:
    from manyheads.facts.records import Convention, Fact, Formula

    match entry:
        case Fact():
            return _sheet(entry, ("verdict", _verdict(entry)), [("claim", entry.claim), ("correct", entry.right)])
        case Formula():
            return _sheet(entry, ("formula", entry.name), _formula_rows(entry))
        case Convention():
            rows = [("practice", entry.practice), ("here", entry.rule)]
            return _sheet(entry, ("convention", entry.name), rows)
        case _:
            return _quoted(entry)


def _formula_rows(formula: Formula) -> list[tuple[str, str]]:
    from manyheads.facts.arithmetic import grouped

    letters = "\n".join(f"{letter} = {meaning}" for letter, meaning in formula.symbols)
    where = "\n".join(f"{letter} = {grouped(meaning)}" for letter, meaning in formula.where)
    return [("value", grouped(formula.formula)), ("where", where), ("letters", letters), ("note", formula.condition)]


def _sheet(entry: Fact | Formula | Convention, heading: tuple[str, str], rows: list[tuple[str, str]]) -> Table:
    """A record as lines of name and text; empty ones are left out."""
    from manyheads.facts.library import glossary
    from manyheads.facts.working import outcomes
    from manyheads.report import Column, Table

    rows = [*rows, ("arithmetic", "\n".join(map(_line, outcomes(entry)))), ("source", _source_lines(entry.sources))]
    question = f"{entry.key}, {entry.topic}: {glossary('topics')[entry.topic]}"
    return Table(question, (Column(heading[0]), Column(heading[1])), tuple(row for row in rows if row[1]))


def _quoted(table: QuotedTable) -> Table:
    from manyheads.facts.working import outcomes
    from manyheads.report import Column, Table

    numeric = [
        all(not isinstance(row[index], str) or not row[index] for row in table.rows)
        for index in range(len(table.columns))
    ]
    columns = tuple(
        Column(name, align="right" if is_number else "left")
        for name, is_number in zip(table.columns, numeric, strict=True)
    )
    rows = tuple(tuple(_cell(cell) for cell in row) for row in table.rows)
    sums = ["Worked out again:", *(f"- {_line(outcome)}" for outcome in outcomes(table))]
    source = [f"Source: {line}" for line in _source_lines(table.sources).split("\n")]
    return Table(f"{table.key}: {table.name}", columns, rows, (table.note, *sums, *source))


def _cell(cell: str | int | Decimal) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _line(outcome: Outcome) -> str:
    return f"{outcome.label}: {outcome.text}" if outcome.label else outcome.text


def _source_lines(citations: Iterable[Citation]) -> str:
    return "\n".join(_source_line(citation) for citation in citations)


def _source_line(citation: Citation) -> str:
    from manyheads.facts.library import source

    record = source(citation.source)
    names = [
        name.strip("{}").partition(", ")[0] if not name.startswith("{") else name.strip("{}") for name in record.authors
    ]
    several = len(names) > 2 or record.more_authors
    who = f"{names[0]} and others" if several else " and ".join(names)
    signed = f"{who} {record.year}, {record.title}" if who else record.title
    parts = [
        signed,
        f"version {record.version}" if record.version else "",
        f"arXiv:{record.arxiv}" if record.arxiv else "",
    ]
    where = f"; {citation.where}" if citation.where else ""
    read = f" (read: {record.read})" if citation.strength == "P" else ""
    return f"[{citation.strength}] {', '.join(part for part in parts if part)}{where}{read}"


def _strengths(found: Iterable[Entry]) -> tuple[str, ...]:
    from manyheads.facts.library import glossary

    used = {citation.strength for entry in found for citation in entry.sources}
    return tuple(f"[{letter}] {meaning}" for letter, meaning in glossary("strengths").items() if letter in used)


def _data(found: tuple[Entry, ...]) -> dict[str, object]:
    from dataclasses import asdict

    from manyheads.facts.library import source

    keys = dict.fromkeys(citation.source for entry in found for citation in entry.sources)
    return {
        "schema": SCHEMA,
        "count": len(found),
        "entries": [_entry_data(entry) for entry in found],
        "sources": {key: _plain(asdict(source(key))) for key in keys},
    }


def _entry_data(entry: Entry) -> dict[str, Any]:
    from dataclasses import asdict

    from manyheads.facts.records import Fact, Formula
    from manyheads.facts.working import outcomes

    kind = "claim" if isinstance(entry, Fact) else _kind(entry)
    data: dict[str, Any] = {"key": entry.key, "kind": kind, **_plain(asdict(entry))}
    data.pop("worked", None)
    if isinstance(entry, Formula):
        data |= {"symbols": dict(entry.symbols), "where": dict(entry.where)}
    data["arithmetic"] = [
        {"label": outcome.label, "text": outcome.text, "value": _number(outcome.value), "unit": outcome.unit}
        for outcome in outcomes(entry)
    ]
    return data


def _number(value: Any) -> int | float:
    return int(value) if value == int(value) else float(value)


def _plain(value: Any) -> Any:
    """The same with lists for tuples and numbers for decimals."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return float(value) if isinstance(value, Decimal) else value
