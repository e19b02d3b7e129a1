"""What the x-ray says of heads as tables, made of its object alone."""

from __future__ import annotations

from manyheads.heads.address import format_head, parse_head
from manyheads.heads.left_out import NotMeasured, left_out_notes
from manyheads.heads.roles import SINK
from manyheads.heads.roles.tables import CONTROLS, ORDER, by_reason, controls, correction, counted, role_name, two
from manyheads.report import units
from manyheads.report.value import Column, Table
from manyheads.xray.heads_record import HeadsFound
from manyheads.xray.importance_tables import FIRST, MATTER, first_table, matter_table

__all__ = ["BUDGET", "CLEAREST", "CONTROLS", "FIRST", "MATTER", "ROLES", "tables"]

ROLES = "What does each head do?"
BUDGET = "How many heads can go for 1% more loss?"
CLEAREST = 3


def tables(found: HeadsFound) -> tuple[Table, ...]:
    """Roles, importance and how many can go, in reading order; one that could not be made says why."""
    own = found.roles
    held = () if isinstance(own, NotMeasured) else (controls(own.roles, (one.holding for one in own.roles)),)
    return _roles(found), *held, *_matter(found), _budget(found)


def _missing(question: str, what: str, reason: str) -> Table:
    return Table(question, (Column("measure"), Column("value")), ((what, "none"), ("why", reason)))


def _roles(found: HeadsFound) -> Table:
    own = found.roles
    if isinstance(own, NotMeasured):
        return _missing(ROLES, "roles", own.reason)
    rows = [
        (
            role_name(one.role, row.detail), _short(row.head), two(row.score),
            f"{two(row.low)} to {two(row.high)}", two(row.control),
        )
        for one in own.roles
        for row in one.heads[:CLEAREST]
    ]  # fmt: skip
    notes = [
        *counted(own.labels.values(), sum(one.holding for one in own.roles if one.role == SINK)),
        correction(own),
        ORDER,
        f"{own.windows} windows of {own.window_tokens} tokens; {own.bos}",
        *by_reason(own.not_tested),
        *left_out_notes(own.left_out),
    ]
    notes += [f"no maps of where heads look: {found.maps.reason}"] if found.maps.reason else []
    columns = (
        Column("role, the clearest heads"), Column("head"), Column("score", "right"), Column("95% interval", "right"),
        Column("control", "right"),
    )  # fmt: skip
    return Table(ROLES, columns, tuple(rows), tuple(notes))


def _short(address: str) -> str:
    return format_head(parse_head(address), short=True)


def _matter(found: HeadsFound) -> tuple[Table, ...]:
    own = found.importance
    if isinstance(own, NotMeasured):
        return (_missing(MATTER, "importance", own.reason),)
    labels = {} if isinstance(found.roles, NotMeasured) else found.roles.labels
    apart = () if own.first_position.reason else (first_table(own, labels),)
    return matter_table(own, labels), *apart


def _budget(found: HeadsFound) -> Table:
    own, loss = found.removable, found.importance
    if own.reason or isinstance(loss, NotMeasured):
        return _missing(BUDGET, "a number", own.reason)
    rows = tuple(
        (
            row.text, "nothing" if row.how == "zero" else "its mean",
            "all of them" if row.beyond else f"{units.number(row.heads)} of {units.number(row.total)}",
            f"{row.low} to {row.high}", f"{row.heads / row.total:.0%}",
        )
        for row in own.texts
    )  # fmt: skip
    notes = (
        f"loss of {loss.objective}, {loss.unit}",
        "least important first, by what the other half says that each costs alone: no head is chosen on the text that it is judged by",
        "interval: 95%, over the windows, numbers tried until nearly all of them cross; between two of them straight lines",
        "taken out together and not retrained; `manyheads prune` removes them for real",
    )
    columns = (
        Column("judged on"), Column("a head gives"), Column("heads that can go", "right"), Column("95% interval", "right"),
        Column("share", "right"),
    )  # fmt: skip
    return Table(BUDGET, columns, rows, notes)
