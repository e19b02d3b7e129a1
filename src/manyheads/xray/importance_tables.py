"""Which heads matter, as the x-ray says it: those that are told apart from nothing, and how many are not."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from manyheads.heads.address import format_head, parse_head
from manyheads.heads.effects import DRIFT
from manyheads.report import units
from manyheads.report.value import Column, Table
from manyheads.xray.heads_record import HeadImportance, ImportanceFound

__all__ = ["FIRST", "MATTER", "first_table", "matter_table"]

MATTER = "Which heads matter?"
FIRST = "What hangs on the first position?"
_SHOWN = 16
_NONE_SHOWN = 5
_FIRST_SHOWN = 3


def matter_table(own: ImportanceFound, labels: Mapping[str, str]) -> Table:
    """The heads without which the loss is higher, by what that costs; where there is none, those with the highest estimates."""
    measured = sorted(
        (row for row in own.heads if row.loss_without is not None), key=lambda row: -(row.loss_without or 0.0)
    )
    apart = [row for row in measured if row.told_apart]
    shown = apart[:_SHOWN] or measured[:_NONE_SHOWN]
    rows = tuple(
        (
            _short(row.head), labels.get(row.head) or "-", f"{row.loss_without:+.4f}", _interval(row.loss_low, row.loss_high),
            *([f"{row.expected:+.4f}"] if row.expected is not None else []),
        )
        for row in shown
    )  # fmt: skip
    columns = (
        Column("head"), Column("role"), Column(f"{_loss(own)} without it", "right"), Column("95% interval", "right"),
        *([Column("to first order", "right")] if own.first_order_seconds is not None else []),
    )  # fmt: skip
    return Table(MATTER, columns, rows, tuple(_notes(own, apart, len(apart) - _SHOWN)))


def _notes(own: ImportanceFound, apart: Sequence[HeadImportance], more: int) -> list[str]:
    many = len(own.heads)
    told = (
        f"{len(apart)} of {many} heads are told apart from 0: without them the {_loss(own)} is higher, at a false discovery rate of "
        f"{own.fdr:.0%} over all {many} (Benjamini and Hochberg)"
    )
    if more > 0:
        rest = ", ".join(_short(row.head) for row in apart[-more:])
        told += f"; {more} more than are shown: {rest}"
    others = (
        f"of the other {many - len(apart)} that is not known: what it costs to take one out is not told apart from 0 here, and more text "
        "might tell; so the highest estimates are no finding"
        if not apart
        else f"the other {many - len(apart)} are not told apart from 0 here: they may matter too, by less or on other text"
    )
    notes = [
        told,
        others,
        f"judged by {own.objective}: {own.loss_is}; the loss of the whole is {own.baseline:.4f} {own.unit}",
    ]
    notes += _how(own)
    if own.first_position.reason == "":
        notes.append(
            "the first position of a window is left alone, since causal models use it as a sink; it is measured apart below"
        )
    if own.rank_correlation is not None and own.expected_correlation is not None:
        notes.append(
            f"rank correlation with what was measured: {own.expected_correlation:.2f} of first order towards the mean, "
            f"{own.rank_correlation:.2f} of |dL/dg|, the slope of a factor on the head's output"
        )
    return notes


def _how(own: ImportanceFound) -> list[str]:
    """How much was measured, and what stopped it."""
    many, tokens = len(own.heads), own.window_tokens
    taken = own.exact_heads
    which = f"all {many} heads" if taken == many else f"the {taken} heads that promised most"
    first = (
        f"{which} were taken out on {own.exact_windows} windows of {tokens} tokens, one at a time, each giving its mean instead, the same "
        "windows with and without it"
    )
    if own.screened_heads:
        screened = "all" if own.screened_heads == many else f"{own.screened_heads} of {many}"
        first += f"; {screened} were before, on {own.screen_windows} short ones of {own.screen_tokens}"
    notes = [first]
    if own.first_order_seconds is not None:
        notes.append(
            f"figures are first-order estimates over {own.windows} windows, corrected by what was measured on these (double sampling); "
            "intervals are Student's t over windows"
        )
    else:
        notes.append(
            "no first-order estimates: where no head is missing the drift is 0 and flat; intervals are Student's t over windows"
        )
    limit = own.budget.seconds
    spent = units.duration(own.exact_seconds + (own.first_order_seconds or 0.0))
    if own.budget.stopped:
        notes.append(
            f"stopped after {spent}: no new work is begun after {limit:g} s (seconds=); more time takes more heads out"
        )
    elif limit is not None:
        notes.append(
            f"this took {spent} of the {limit:g} s that it may (seconds=); exact=True takes every head out on as many windows"
        )
    return notes


def first_table(own: ImportanceFound, labels: Mapping[str, str]) -> Table:
    """What the first position costs, of the heads furthest from 0."""
    first = own.first_position
    rows = tuple(
        (
            _short(row.head), labels.get(row.head) or "-", f"{row.loss:+.4f}", _interval(row.low, row.high),
            f"{row.largest:+.4f}",
        )
        for row in first.heads[:_FIRST_SHOWN]
    )  # fmt: skip
    notes = (
        (
            f"{own.unit}, over the first {first.tokens} tokens of {first.windows} windows, when the head gives its mean at the first "
            "position and its own output everywhere else"
        ),
        "all heads of a layer together first, and one at a time in the two layers where that changed most",
        (
            "what is done to the first position reaches every later token: one odd first token can make the whole mean, so look at the one "
            "window; the table above leaves that position alone, and taking heads out together below does not"
        ),
    )
    columns = (
        Column("head"), Column("role"), Column(f"{_loss(own)} without it there", "right"), Column("95% interval", "right"),
        Column("one window alone", "right"),
    )  # fmt: skip
    return Table(FIRST, columns, rows, notes)


def _loss(own: ImportanceFound) -> str:
    return "drift" if own.objective == DRIFT else "loss"


def _short(address: str) -> str:
    return format_head(parse_head(address), short=True)


def _interval(low: float, high: float) -> str:
    return f"{low:+.4f} to {high:+.4f}" if math.isfinite(low) and math.isfinite(high) else "none"
