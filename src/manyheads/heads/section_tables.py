"""What the x-ray says of heads as tables, made of its object alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyheads.heads.address import format_head, parse_head
from manyheads.heads.objective import DRIFT
from manyheads.report import units
from manyheads.report.value import Column, Table

__all__ = ["BUDGET", "CLEAREST", "MATTER", "ROLES", "tables"]

Data = Mapping[str, Any]
ROLES = "What does each head do?"
MATTER = "Which heads matter?"
BUDGET = "How many heads can go for 1% more loss?"
CLEAREST = 3
_EXTREMES = 5


def tables(data: Data) -> tuple[Table, ...]:
    """Roles, importance and how many can go, in reading order; one that could not be made says why."""
    return _roles(data), _matter(data), _budget(data)


def _missing(question: str, what: str, reason: str) -> Table:
    return Table(question, (Column("measure"), Column("value")), ((what, "none"), ("why", reason)))


def _roles(data: Data) -> Table:
    own = data["roles"]
    if own["reason"]:
        return _missing(ROLES, "roles", own["reason"])
    scores = {} if data["importance"]["reason"] else {row["head"]: row["score"] for row in data["importance"]["heads"]}
    rows = []
    for one in own["roles"]:
        for row in one["heads"][:CLEAREST]:
            matters = scores.get(row["head"])
            rows.append(
                (
                    one["role"], _short(row["head"]), _two(row["score"]), f"{_two(row['low'])} to {_two(row['high'])}",
                    _two(row["control"]), f"{matters:.2g}" if matters is not None else "-",
                )
            )  # fmt: skip
    labelled = sum(bool(label) for label in own["labels"].values())
    sure = f"false discovery rate {own['fdr']:.0%} over all {own['tests']:,} tests"
    notes = [
        f"{labelled} of {len(own['labels'])} heads have a role that beats its control: {sure}",
        "heads were chosen on one half of the windows and scored on the other",
        "heads that hold each role: " + ", ".join(f"{one['role']} {one['holding']}" for one in own["roles"]),
        f"{own['windows']} windows of {own['window_tokens']} tokens; {own['bos']}",
        *(f"not tested: {', '.join(names)}: {why}" for why, names in _by_reason(own["not_tested"]).items()),
    ]
    notes += [f"no maps of where heads look: {data['maps']['reason']}"] if data["maps"]["reason"] else []
    columns = (
        Column("role, the clearest heads"), Column("head"), Column("score", "right"), Column("95% interval", "right"),
        Column("control", "right"), Column("importance", "right"),
    )  # fmt: skip
    return Table(ROLES, columns, tuple(rows), tuple(notes))


def _by_reason(missing: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in missing:
        found.setdefault(one["why"], []).append(one["role"])
    return found


def _short(address: str) -> str:
    return format_head(parse_head(address), short=True)


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _matter(data: Data) -> Table:
    own = data["importance"]
    if own["reason"]:
        return _missing(MATTER, "importance", own["reason"])
    labels = {} if data["roles"]["reason"] else data["roles"]["labels"]
    falling = sorted(own["heads"], key=lambda row: -row["score"])
    shown = falling if len(falling) <= 2 * _EXTREMES else [*falling[:_EXTREMES], *falling[-_EXTREMES:]]
    slopes = any(row["first_order"] is not None for row in falling)
    rows = tuple(
        (
            _short(row["head"]), labels.get(row["head"]) or "-", f"{falling.index(row) + 1} of {len(falling)}",
            *([f"{row['first_order']:.2g}"] if slopes else []),
            f"{row['loss_without']:+.4f}" if row["loss_without"] is not None else "not taken out",
        )
        for row in shown
    )  # fmt: skip
    what = "drift" if own["objective"] == DRIFT else "loss"
    columns = (
        Column("head"), Column("role"), Column("rank", "right"), *([Column("first order", "right")] if slopes else []),
        Column(f"{what} without it", "right"),
    )  # fmt: skip
    return Table(MATTER, columns, rows, tuple(_measures(own, slopes=slopes)))


def _measures(own: Data, *, slopes: bool) -> list[str]:
    many = len(own["heads"])
    windows = f"{own['windows']} windows of {own['window_tokens']} tokens"
    judged = f"the mean of {own['exact_windows']} of these windows"
    more = "" if own["exact_heads"] == many else "; --exact does that for all"
    exact = (
        f"exact for {own['exact_heads']} of {many} heads, taken out one at a time, each giving its mean instead{more}"
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
        agreement = f"{own['rank_correlation']:.2f}"
        notes.append(f"rank correlation of the two measures over these {own['exact_heads']} heads: {agreement}")
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
