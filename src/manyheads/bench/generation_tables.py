"""A whole model's tokens as tables: what they cost, and what that is made of."""

from __future__ import annotations

from manyheads.bench.generation import Generation, RunnerResult
from manyheads.report import Column, Table
from manyheads.report.units import duration, gib, number, si

__all__ = ["generation_tables"]

_NONE = "-"


def generation_tables(told: Generation) -> list[Table]:
    """Tokens of every way, and the parts of a token at the long context."""
    parts = _parts(told)
    return [_tokens(told)] if parts is None else [_tokens(told), parts]


def _tokens(told: Generation) -> Table:
    few, many = told.cached[0], told.cached[-1]
    names = (
        "way", "threads", f"{number(few)} cached", f"{number(many)} cached", "extra", f"first, {number(told.prompt)}",
        f"first, {number(many)}", "error",
    )  # fmt: skip
    columns = tuple(Column(name, "right" if i else "left") for i, name in enumerate(names))
    rows = tuple(_row(way, told) for way in told.ways)
    grown = (many - few) * told.bytes_a_token
    notes = (
        (
            f"{told.model} in {told.dtype}, one sequence, greedy. Medians of a token after {number(few)} and {number(many)} cached "
            f"tokens; extra: the difference, which is the cache's doing; first: seconds to the first token of a prompt."
        ),
        (
            f"The cache is {gib(grown)} larger: {duration(told.extra_floor_seconds)} at {si(told.bandwidth, 'B/s')}, the best "
            "read of the same minutes."
        ),
        "error: logits at the longer context against the same weights and cache in float64.",
        *dict.fromkeys(f"{way.name}: {reason}" for way in told.ways for reason in _reasons(way)),
    )
    return Table(f"What does a token of {told.model} cost?", columns, rows, notes)


def _reasons(way: RunnerResult) -> list[str]:
    return [reason for reason in (way.reason, *(times.reason for times in way.times)) if reason]


def _row(way: RunnerResult, told: Generation) -> tuple[str, ...]:
    at = {times.cached: times for times in way.times}
    cells = []
    for length in (told.cached[0], told.cached[-1]):
        times = at.get(length)
        wrong = times is not None and not times.seconds and times.reason
        cells.append(_seconds(times.median) if times is not None and times.seconds else "disagrees" if wrong else _NONE)
    last = at.get(told.cached[-1])
    error = _NONE if last is None or last.error is None else f"{last.error:.1e}"
    firsts = [_seconds(way.first_seconds.get(length)) for length in (told.prompt, told.cached[-1])]
    return (way.name, str(way.threads), *cells, _seconds(way.extra_seconds), *firsts, error)


def _seconds(value: float | None) -> str:
    return _NONE if value is None else duration(value)


def _parts(told: Generation) -> Table | None:
    """At the long context; a column for each way that could be watched."""
    many = told.cached[-1]
    watched = [way for way in told.ways if way.parts.get(many)]
    if not watched:
        return None
    columns = (Column("part"), *(Column(way.name, "right") for way in watched))
    names = list(watched[0].parts[many])
    rows = [(name, *(duration(way.parts[many][name]) for way in watched)) for name in names]
    rows.append(("all", *(duration(sum(way.parts[many].values())) for way in watched)))
    notes = (
        (
            f"A token after {number(many)} cached ones, in a run of its own with a clock around every module, which takes "
            "time too: compare the parts, not the sum."
        ),
    )
    return Table("What is a token made of?", columns, tuple(rows), notes)
