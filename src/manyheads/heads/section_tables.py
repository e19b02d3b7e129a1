"""What the x-ray says of heads as tables, made of its object alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyheads.heads.address import format_head, parse_head
from manyheads.heads.importance import FIRST_ORDER
from manyheads.heads.left_out import left_out_notes
from manyheads.heads.objective import DRIFT
from manyheads.heads.role_tables import CONTROLS, ORDER, by_reason, controls, correction, role_name, two
from manyheads.heads.roles import SINK
from manyheads.report import units
from manyheads.report.value import Column, Table

__all__ = ["BUDGET", "CLEAREST", "CONTROLS", "MATTER", "ROLES", "tables"]

Data = Mapping[str, Any]
ROLES = "What does each head do?"
MATTER = "Which heads matter?"
BUDGET = "How many heads can go for 1% more loss?"
CLEAREST = 3
_EXTREMES = 5


def tables(data: Data) -> tuple[Table, ...]:
    """Roles, importance and how many can go, in reading order; one that could not be made says why."""
    own = data["roles"]
    held = () if own["reason"] else (controls(own["roles"], (one["holding"] for one in own["roles"])),)
    return _roles(data), *held, _matter(data), _budget(data)


def _missing(question: str, what: str, reason: str) -> Table:
    return Table(question, (Column("measure"), Column("value")), ((what, "none"), ("why", reason)))


def _roles(data: Data) -> Table:
    own = data["roles"]
    if own["reason"]:
        return _missing(ROLES, "roles", own["reason"])
    rows = [
        (
            role_name(one["role"], row["detail"]), _short(row["head"]), two(row["score"]),
            f"{two(row['low'])} to {two(row['high'])}", two(row["control"]),
        )
        for one in own["roles"]
        for row in one["heads"][:CLEAREST]
    ]  # fmt: skip
    labels = [label for label in own["labels"].values() if label]
    sinks = sum(label == SINK for label in labels)
    alone = f", {sinks} of them only as a sink, by looking at the first token" if sinks else ""
    notes = [
        f"{len(labels)} of {len(own['labels'])} heads have a role that beats its control{alone}",
        correction(own),
        ORDER,
        f"{own['windows']} windows of {own['window_tokens']} tokens; {own['bos']}",
        *by_reason(own["not_tested"]),
        *left_out_notes(own["left_out"]),
    ]
    notes += [f"no maps of where heads look: {data['maps']['reason']}"] if data["maps"]["reason"] else []
    columns = (
        Column("role, the clearest heads"), Column("head"), Column("score", "right"), Column("95% interval", "right"),
        Column("control", "right"),
    )  # fmt: skip
    return Table(ROLES, columns, tuple(rows), tuple(notes))


def _short(address: str) -> str:
    return format_head(parse_head(address), short=True)


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"


def _matter(data: Data) -> Table:
    own = data["importance"]
    if own["reason"]:
        return _missing(MATTER, "importance", own["reason"])
    labels = {} if data["roles"]["reason"] else data["roles"]["labels"]
    slopes = own["method"] == FIRST_ORDER or any(row["first_order"] is not None for row in own["heads"])
    order = sorted((row for row in own["heads"] if slopes), key=lambda row: -row["first_order"])
    ranks = {row["head"]: f"{place} of {len(order)}" for place, row in enumerate(order, 1)}
    # Who was taken out, by what that showed: a head may matter most and have a small slope.
    falling = sorted(
        (row for row in own["heads"] if row["loss_without"] is not None), key=lambda row: -row["loss_without"]
    )
    most = len(falling) if own["exact_heads"] < len(own["heads"]) else _EXTREMES
    shown = falling if len(falling) <= 2 * most else [*falling[:most], *falling[-most:]]
    rows = tuple(
        (
            _short(row["head"]), labels.get(row["head"]) or "-", f"{row['loss_without']:+.4f}",
            f"{_signed(row['loss_low'])} to {_signed(row['loss_high'])}",
            *([f"{row['first_order']:.2g}", ranks[row["head"]]] if slopes else []),
        )
        for row in shown
    )  # fmt: skip
    what = "drift" if own["objective"] == DRIFT else "loss"
    columns = (
        Column("head"), Column("role"), Column(f"{what} without it", "right"), Column("95% interval", "right"),
        *([Column("first order", "right"), Column("its rank", "right")] if slopes else []),
    )  # fmt: skip
    return Table(MATTER, columns, rows, tuple(_measures(own, slopes=slopes)))


def _measures(own: Data, *, slopes: bool) -> list[str]:
    many = len(own["heads"])
    windows = f"{own['windows']} windows of {own['window_tokens']} tokens"
    judged = f"the mean of {own['exact_windows']} of these windows, the interval Student's over them"
    ends = own["exact_heads"] < many
    which = f", the highest and lowest by first order: {many - own['exact_heads']} were not taken out" if ends else ""
    exact = (
        f"exact for {own['exact_heads']} of {many} heads{which}{'; --exact does that for all' if ends else ''}. Taken out one "
        "at a time, each giving its mean instead"
    )
    said = f"judged by {own['objective']}: {own['loss_is']}"
    if not slopes:
        none = "no first-order scores: where no head is missing the drift is 0 and flat"
        return [said, f"{exact}; the mean of {own['exact_windows']} windows of {own['window_tokens']} tokens", none]
    notes = [
        f"first order: |dL/dg| of a factor g on the head's output, the mean of {windows}",
        f"the loss there is {own['baseline']:.4f} {own['unit']}; {said}",
        f"{exact}; {judged}",
    ]
    if own["rank_correlation"] is not None:
        about = ", the two ends of one of them, which says little of the rest" if ends else ""
        agreement = f"{own['rank_correlation']:.2f}"
        notes.append(f"rank correlation of the two measures over these {own['exact_heads']} heads{about}: {agreement}")
    return notes


def _budget(data: Data) -> Table:
    own = data["removable"]
    if own["reason"]:
        return _missing(BUDGET, "a number", own["reason"])
    rows = tuple(
        (
            row["text"], "nothing" if row["how"] == "zero" else "its mean",
            "all of them" if row["beyond"] else f"{units.number(row['heads'])} of {units.number(row['total'])}",
            f"{row['low']} to {row['high']}", f"{row['heads'] / row['total']:.0%}",
        )
        for row in own["texts"]
    )  # fmt: skip
    measure = "by exact ablation" if data["importance"]["method"] != "first-order" else "by their first-order scores"
    loss = data["importance"]
    notes = (
        f"loss of {loss['objective']}, {loss['unit']}",
        f"least important first, {measure} on the other half: no head is chosen on the text that it is judged by",
        "interval: 95%, over the windows; between the numbers that were tried, straight lines",
        "taken out together and not retrained; `manyheads prune` removes them for real",
    )
    columns = (
        Column("judged on"), Column("a head gives"), Column("heads that can go", "right"), Column("95% interval", "right"),
        Column("share", "right"),
    )  # fmt: skip
    return Table(BUDGET, columns, rows, notes)
