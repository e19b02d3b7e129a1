"""The report of `manyheads heads`, and its CSV, made from its object alone."""

from __future__ import annotations

import csv
import io
import shlex
from collections.abc import Sequence
from math import isfinite, nan
from typing import Any

from manyheads.heads.left_out import left_out_notes
from manyheads.heads.overview.record import HeadFigures, HeadInDetail, HeadsOverview, TextRead
from manyheads.heads.roles import SINK
from manyheads.heads.roles.tables import ORDER, by_reason, controls, correction, counted, role_name, two
from manyheads.models.scoring import GOES_ON
from manyheads.report.jsonform import as_json
from manyheads.report.value import Column, Report, Table

__all__ = ["MEANS", "as_csv", "report"]

_SHOWN = {
    "first": "first", "self": "self", "previous": "prev.", "next": "next", "duplicate": "dup.", "induction": "ind.",
}  # fmt: skip
_MEASURES = {"first-order": "1st order", "zero": "zeroed", "mean": "to mean", "resample": "resampled"}
MEANS = {
    "first-order": "first-order importance: size of the loss's gradient by a gate on the head (not the loss without it)",
    "zero": "what its loss rises by when the head gives zeros",
    "mean": "what its loss rises by when the head gives its mean",
    "resample": "what its loss rises by when the head gives its output on other text",
}
_WITH_UNITS = {
    "entropy": "entropy, nats", "distance": "mean distance, tokens", "spread": "spread of the logits, no unit",
    "sink": "to no key, a share", "output_norm": "norm of the output, no unit",
}  # fmt: skip
_PLAIN = ("entropy", "distance", "spread", "sink", "output_norm")
_MOST_A_ROLE = 3
_NEAREST_SHOWN = 8


def report(told: HeadsOverview) -> Report:
    """What is printed of what `heads.overview.run.overview` tells: all heads, or one in detail."""
    text = told.text
    title = f"{told.model}: {len(told.heads)} heads on {text.tokens:,} tokens of {text.name}"
    if told.one is None:
        tables = [_all_heads(told), *_clearest(told), *_controls(told)]
    else:
        tables = [
            _one_head(told, told.one),
            _distances(told.one, told.reach),
            *_its_roles(told, told.one),
            *_controls(told),
        ]
    return Report(
        title, tuple(table for table in tables if table.rows), as_json(told), tuple(_notes(told)), _next(told)
    )


def _all_heads(told: HeadsOverview) -> Table:
    names = [name for name in _SHOWN if any(isfinite(head.mass.get(name, nan)) for head in told.heads)]
    names = [name for name in names if name != "induction" or "next" not in names]  # six would not fit into 80 columns
    most = max((abs(head.importance) for head in told.heads if isfinite(head.importance)), default=0.0)
    own = told.importance
    columns = [
        Column("head"),
        Column("role"),
        *([Column(_MEASURES[own.method], "right")] if own is not None and most else []),
    ]
    columns += [Column(name, "right") for name in (*(_SHOWN[name] for name in names), "strongest")]
    rows = []
    for stage in dict.fromkeys(head.stage for head in told.heads):
        chance = next(row for row in told.chance if row.stage == stage)
        rows.append((stage, "chance", *([""] if most else []), *(_share(chance.mass[name]) for name in names), ""))
    for head in told.heads:
        matters = [_percent(head.importance, most)] if most else []
        shares = [_share(head.mass[name]) for name in names]
        rows.append((head.head, head.role, *matters, *shares, _strongest(head, told.reach)))
    notes = [
        "prev., dup., ind.: the token before, other keys of the query's own token, keys behind an earlier one of it",
        "shares are means in % over the queries that see such a key",
        "chance: of a head to which all keys are alike, in the first layer",
        "strongest: the distance to the query's strongest key in most cases (+: or more), and in what share of them",
    ]
    if own is not None and most:
        name, size = _MEASURES[own.method], f"{most:.2e} {own.unit}"
        notes.insert(1, f"{name}: {MEANS[own.method]}, in % of the largest, {size}")
    notes += _unread(told.text)
    notes.append(
        "entropy, mean distance, spread, delimiters and rare tokens are in the CSV and the JSON, and with head= in the text"
    )
    return Table("Where does each head look?", tuple(columns), tuple(rows), tuple(notes))


def _unread(text: TextRead) -> list[str]:
    """What of the text was not read."""
    return ([GOES_ON.format(tokens=text.tokens)] if text.goes_on else []) + left_out_notes(text.left_out)


def _clearest(told: HeadsOverview) -> list[Table]:
    if told.roles is None:
        return []
    rows = []
    for role in told.roles.roles:
        holding = sorted((head for head in role.heads if head.verdict == "holds"), key=lambda head: -head.ahead)
        if not holding:
            rows.append((role.role, "none", "", "", ""))
        for head in holding[:_MOST_A_ROLE]:
            interval = f"{two(head.low)} to {two(head.high)}"
            name = role_name(role.role, head.detail)
            rows.append((name, head.head, two(head.score), interval, two(head.null)))
    columns = (Column("role"), Column("head"), Column("score", "right"), Column("95%"), Column("control", "right"))
    sinks = sum(head.verdict == "holds" for role in told.roles.roles if role.role == SINK for head in role.heads)
    notes = (
        *counted((head.role for head in told.heads), sinks), correction(told.roles), ORDER,
        *by_reason(told.roles.not_tested), *left_out_notes(told.roles.left_out),
    )  # fmt: skip
    return [Table("Which heads have a role that beats its control?", columns, tuple(rows), notes)]


def _controls(told: HeadsOverview) -> list[Table]:
    if told.roles is None:
        return []
    every = told.roles.roles
    return [controls(every, (sum(head.verdict == "holds" for head in one.heads) for one in every))]


def _one_head(told: HeadsOverview, one: HeadInDetail) -> Table:
    head, own = next(head for head in told.heads if head.head == one.head), told.importance
    chance = next(row for row in told.chance if (row.stage, row.layer) == (head.stage, head.layer))
    rows = [
        (f"{name}, %", _share(head.mass[name]), _share(chance.mass[name])) for name in head.mass
        if isfinite(head.mass[name])
    ]  # fmt: skip
    sinks = any(other.sink > 0 for other in told.heads)  # logits of no key, which few models have
    rows += [
        (_WITH_UNITS[name], _three(getattr(head, name)), _three(getattr(chance, name))) for name in _PLAIN
        if isfinite(getattr(head, name)) and (name != "sink" or sinks)
    ]  # fmt: skip
    if own is not None and isfinite(head.importance):
        order = sorted((other.importance for other in told.heads), reverse=True)
        rank = f"{order.index(head.importance) + 1} of {len(order)}"
        rows.append((f"{MEANS[own.method]}, {own.unit}", _small(head.importance), f"rank {rank}"))
        if head.told_apart is not None:
            spread = f"{_small(head.importance_low)} to {_small(head.importance_high)}"
            rows.append(("its 95% interval", spread, "told apart from 0" if head.told_apart else "not told apart"))
    columns = (Column("figure"), Column("this head", "right"), Column("by chance", "right"))
    role = f" ({head.role})" if head.role else ""
    return Table(f"Where does head {head.head}{role} look?", columns, tuple(rows), tuple(_unread(told.text)))


def _distances(one: HeadInDetail, reach: int) -> Table:
    rows = []
    for at, share in enumerate(one.offsets):
        distance = at - reach
        near, end = abs(distance) <= _NEAREST_SHOWN, abs(distance) == reach
        if not isfinite(share) or not (near or end) or not (share > 0 or one.offsets_by_chance[at] > 0):
            continue
        name = f"{reach} or more {'before' if distance > 0 else 'after'}" if end else str(distance)
        rows.append((name, _share(share), _share(one.offsets_by_chance[at]), _share(one.top_offsets[at])))
    columns = (
        Column("distance"), Column("attention, %", "right"), Column("by chance, %", "right"),
        Column("strongest key, %", "right"),
    )  # fmt: skip
    note = "distance: query minus key, 1 is the token before; all of them are in the JSON"
    return Table("At which distances?", columns, tuple(rows), (note,))


def _its_roles(told: HeadsOverview, one: HeadInDetail) -> list[Table]:
    if told.roles is None:
        return []
    rows, kinds = [], []
    for role in told.roles.roles:
        for head in role.heads:
            if head.head == one.head:
                kinds += [f"coreference, by kind: {head.detail}"] if role.role == "coreference" else []
                interval = f"{two(head.low)} to {two(head.high)}"
                name = role_name(role.role, head.detail)
                rows.append((name, two(head.score), interval, two(head.null), _q(head.q_value), head.verdict))
    columns = (
        Column("role"), Column("score", "right"), Column("95%"), Column("control", "right"), Column("q", "right"),
        Column("verdict"),
    )  # fmt: skip
    notes = (
        correction(told.roles),
        *kinds,
        *by_reason(told.roles.not_tested),
        *left_out_notes(told.roles.left_out),
    )
    return [Table("Which roles were tested?", columns, tuple(rows), notes)]


def _q(value: float) -> str:
    """As far as a t of a few windows can be believed."""
    return "-" if not isfinite(value) else "< 0.0001" if value < 1e-4 else f"{value:.4f}"


def _notes(told: HeadsOverview) -> list[str]:
    text = told.text
    windows = "1 window" if text.windows == 1 else f"{text.windows:,} windows"
    notes = [f"read in {windows} of {text.window:,} tokens at most; {text.around}"]
    if text.decoder_reads_the_same:
        notes.append("the decoder was given the text that the encoder read, one token later")
    if told.roles is None and told.without_roles != "not asked for":
        notes.append(f"roles were not tested: {told.without_roles}")
    if told.importance is not None:
        own = told.importance
        whole = f"{own.loss:.4g} {own.unit} with all heads"
        notes.append(f"importance is judged by {own.objective}: {own.loss_is}; {whole}")
        notes += _apart(told)
    if told.importance is None and told.without_importance != "not asked for":
        notes.append(f"importance was not measured: {told.without_importance}")
    if told.uncalled:
        notes.append(f"{len(told.uncalled)} attention modules did not run, {told.uncalled[0]} among them")
    return notes


def _apart(told: HeadsOverview) -> list[str]:
    """Of how many heads it is known that they matter, where they were taken out."""
    known = [head for head in told.heads if head.told_apart is not None]
    if not known:
        return []
    apart = sorted((head for head in known if head.told_apart), key=lambda head: -head.importance)
    named = f": {', '.join(head.head for head in apart)}" if apart else ""
    return [
        (
            f"{len(apart)} of {len(known)} heads are told apart from 0, the loss being higher without them (Benjamini and Hochberg at 5% over "
            f"all of them, Student's t over windows){named}; of the others that is not known"
        )
    ]


def _next(told: HeadsOverview) -> str:
    if told.one is not None or not told.heads:
        return ""
    known = [head for head in told.heads if isfinite(head.importance)]
    best = max(known, key=lambda head: head.importance) if known else told.heads[0]
    model = shlex.quote(told.asked) + " " if told.asked else ""
    return f"manyheads heads {model}--head {best.head}"


def as_csv(told: HeadsOverview) -> str:
    """One line a head, after one of names; empty where a figure means nothing."""
    masses = list(told.heads[0].mass) if told.heads else []
    first = [
        "head",
        "stage",
        "layer",
        "number",
        "role",
        "importance",
        "importance_low",
        "importance_high",
        "told_apart",
    ]
    last = [*_PLAIN, "top_offset", "top_offset_share"]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*first, *(f"mass_{name}" for name in masses), *last])
    heads = told.heads if told.one is None else [h for h in told.heads if h.head == told.one.head]
    for head in heads:
        writer.writerow(
            _cells(
                [*(getattr(head, n) for n in first), *(head.mass[n] for n in masses), *(getattr(head, n) for n in last)]
            )
        )
    return out.getvalue()


def _cells(values: Sequence[Any]) -> list[Any]:
    return ["" if value is None or value != value else value for value in values]


def _share(value: float) -> str:
    return "" if not isfinite(value) else f"{100 * value:.1f}"


def _strongest(head: HeadFigures, reach: int) -> str:
    distance = head.top_offset
    if distance is None:
        return ""
    return f"{distance}{'+' * (abs(distance) == reach)} ({100 * head.top_offset_share:.0f}%)"


def _small(value: float) -> str:
    return "" if not isfinite(value) else f"{value:.2e}"


def _percent(value: float, whole: float) -> str:
    return "" if not isfinite(value) else f"{100 * value / whole:.1f}"


def _three(value: float) -> str:
    return "" if not isfinite(value) else f"{value:,.3f}"
