"""How much each head matters to a model that is x-rayed, and how many can go: the numbers of that part of the section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, format_head
from manyheads.heads.alignment import Frame
from manyheads.heads.alignment import frame as usual_frame
from manyheads.heads.batches import Batch, longest_text
from manyheads.heads.effects import (
    DRIFT,
    FDR,
    AtFirst,
    Budget,
    Effects,
    Objective,
    Texts,
    count_removable,
    first_position_effects,
    head_effects,
    spearman,
    text_objective,
)
from manyheads.heads.progress import Pace
from manyheads.xray.heads_record import (
    BudgetSpent,
    FirstPosition,
    HeadAtFirst,
    HeadImportance,
    ImportanceFound,
    Removable,
    RemovableHeads,
)
from manyheads.xray.running import Running

__all__ = ["HALVES", "WINDOWS", "WINDOW_TOKENS", "around", "weighed"]

WINDOW_TOKENS = 128
WINDOWS = 16
"""Windows of either half of the text, at most, of which a few are judged on when many heads go."""
HALVES = ("the first half of the text", "the second half")
_LEAST_WINDOWS = 8
_LEAST_WINDOW = 16
_BEGINNING = 32
_SHORTEST = 4
_BEGINNINGS = 6
_JUDGING = 6
_WAYS: tuple[Literal["zero", "mean"], ...] = ("zero", "mean")
_SHARE = 0.01

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Text:
    """Windows of either half of the text, and batches of them: all, the beginnings of one of each half, and of six."""

    rows: tuple[list[list[int]], list[list[int]]]
    texts: Texts
    beginnings: Sequence[Batch]
    beginning_halves: Sequence[int]
    short_tokens: int

    @property
    def judging(self) -> list[list[Batch]]:
        """A few windows of either half."""
        whole = self.texts
        return [
            [batch for batch, half in zip(whole.windows, whole.halves, strict=True) if half == one][:_JUDGING]
            for one in (0, 1)
        ]


def weighed(run: Running, *, every: bool, seconds: float, say: Say) -> tuple[ImportanceFound, Removable]:
    """The importance of every head by what a model of its kind is judged by (`heads.effects.objective`), and how many can go.

    every    take all heads out on as many windows as the most promising, however long it takes
    seconds  begin no new work on taking heads out after that
    Raises ManyheadsError where text says nothing of the model, or is too short.
    """
    frame = around(run)
    judge = text_objective(run.loaded.model, run.loaded.tokenizer, around=frame, seed=run.seed)
    room = longest_text(run.loaded.model, run.limit or WINDOW_TOKENS + len(frame.before) + len(frame.after))
    text, pace = _text(run, judge, room - len(frame.before) - len(frame.after)), Pace(say)
    budget = Budget(seconds=seconds)
    found = head_effects(
        run.loaded.model, text.texts, metric=judge.metric, first_order=judge.first_order, every=every, budget=budget, pace=pace
    )  # fmt: skip
    first = first_position_effects(
        run.loaded.model, text.beginnings, text.beginning_halves, means=found.means, metric=judge.metric, pace=pace
    )  # fmt: skip
    importance = _importance(found, text, budget, judge, _first(first, text), every=every)
    return importance, _removable(run, found, first, text, judge=judge, pace=pace)


def around(run: Running) -> Frame:
    """What an encoder reads is framed as its tokenizer does; before running text stands what was asked for."""
    if run.stack.encoder is not None:
        return usual_frame(run.loaded.tokenizer)
    return Frame((int(run.loaded.tokenizer.bos_token_id),) if run.bos else ())


def _text(run: Running, judge: Objective, room: int) -> _Text:
    """Windows in the order in which they are measured: spread over the text from the first few on, the halves by turns."""
    halves = (run.ids[: len(run.ids) // 2], run.ids[len(run.ids) // 2 :])
    rows = tuple(_spread(_windows(half, room=room)) for half in halves)
    turns = [(half, row) for pair in zip(*rows, strict=True) for half, row in enumerate(pair)]
    short = [(half, rows[half][-1][: max(len(rows[half][-1]) // 4, _SHORTEST)]) for half in (0, 1)]
    begin = [(half, row[:_BEGINNING]) for half, row in turns[:_BEGINNINGS]]
    made = judge.batches(row for _, row in (*turns, *short, *begin))
    one, two = len(turns), len(turns) + len(short)
    texts = Texts(made[:one], [half for half, _ in turns], made[one:two], [half for half, _ in short])
    return _Text((rows[0], rows[1]), texts, made[two:], [half for half, _ in begin], len(short[0][1]))


def _windows(ids: Sequence[int], *, room: int) -> list[list[int]]:
    """Up to WINDOWS windows spread over `ids`, all of one length, at most `room`."""
    width = min(WINDOW_TOKENS, room, max(len(ids) // _LEAST_WINDOWS, _LEAST_WINDOW))
    count = min(len(ids) // width, WINDOWS)
    if count < 2:
        raise ManyheadsError(
            f"each half of the text is {len(ids)} tokens; importance needs two windows of {_LEAST_WINDOW} in each, "
            f"{4 * _LEAST_WINDOW} tokens in all"
        )
    starts = [n * (len(ids) - width) // (count - 1) for n in range(count)]
    return [list(ids[start : start + width]) for start in starts]


def _spread(rows: list[list[int]]) -> list[list[int]]:
    """In an order of which each beginning is spread over all: by the digits of their numbers, read backwards (van der
    Corput)."""
    digits = max(len(rows) - 1, 1).bit_length()
    return [rows[n] for n in sorted(range(len(rows)), key=lambda n: int(f"{n:0{digits}b}"[::-1], 2))]


def _order(found: Effects, first: Sequence[AtFirst], text: _Text, *, half: int, how: str) -> list[Head]:
    """Least important first, by what one half of the text says; with what the first position costs where that was measured."""
    tokens = len(text.rows[0][0])
    extra = {one.head: abs(one.by_half[half]) * min(_BEGINNING, tokens) / tokens for one in first}
    cost = dict(zip(found.heads, found.cost(half, how).tolist(), strict=True))
    return sorted(found.heads, key=lambda head: cost[head] + extra.get(head, 0.0))


def _removable(
    run: Running, found: Effects, first: Sequence[AtFirst], text: _Text, *, judge: Objective, pace: Pace
) -> Removable:  # fmt: skip
    """How many heads can go on either half, in an order that comes from the other."""
    if judge.name == DRIFT:
        why = "it has no language head, so it is judged by the drift of its output, and 1% more than a drift of 0 is 0"
        return Removable(why)
    rows = []
    for number, half in enumerate(text.judging):
        for how in _WAYS:
            pace.say(f"taking heads out until the loss is {_SHARE:.0%} higher: {HALVES[number]}, {how}")
            one = count_removable(
                run.loaded.model, half, _order(found, first, text, half=1 - number, how=how), how=how, share=_SHARE,
                metric=judge.metric, seed=run.seed, say=pace.passing(),
            )  # fmt: skip
            rows.append(
                RemovableHeads(
                    HALVES[number], how, one.heads, one.low, one.high, one.beyond, one.total, one.counts, one.losses
                )
            )
    return Removable("", _SHARE, tuple(rows))


def _importance(
    found: Effects, text: _Text, budget: Budget, judge: Objective, first: FirstPosition, *, every: bool
) -> ImportanceFound:  # fmt: skip
    """A row a head; `score` is what the grid shows."""
    measured = found.screened | (found.windows > 0)
    apart, screened = found.told_apart, found.screened.any()
    rows = tuple(
        HeadImportance(
            format_head(head), float(found.loss[at]), float(found.loss[at]) if measured[at] else None, float(found.low[at]),
            float(found.high[at]), float(found.q_values[at]), bool(apart[at]), int(found.windows[at]), bool(found.screened[at]),
            None if found.expected is None else float(found.expected[at]),
            None if found.slopes is None else float(found.slopes[at]),
        )
        for at, head in enumerate(found.heads)
    )  # fmt: skip
    return ImportanceFound(
        reason="", method="mean", heads=rows, told_apart=int(apart.sum()), fdr=FDR, baseline=found.baseline,
        exact_heads=int((found.windows > 0).sum()), exact_windows=int(found.windows.max()),
        screened_heads=int(found.screened.sum()), screen_windows=len(text.texts.short) if screened else 0,
        screen_tokens=text.short_tokens if screened else 0, windows=len(text.texts.windows), window_tokens=len(text.rows[0][0]),
        budget=BudgetSpent(None if every else budget.seconds, found.stopped),
        rank_correlation=_agreement(found.slopes, found.loss, measured),
        expected_correlation=_agreement(found.expected, found.loss, measured),
        first_order_seconds=found.first_seconds, exact_seconds=found.seconds - (found.first_seconds or 0.0),
        prefix_reused=found.reused, objective=judge.name, loss_is=judge.said, unit=judge.unit, first_position=first,
    )  # fmt: skip


def _first(found: Sequence[AtFirst], text: _Text) -> FirstPosition:
    if not found:
        return FirstPosition("its attention is not causal: no position is the first that every other sees")
    rows = (HeadAtFirst(format_head(one.head), one.loss, one.low, one.high, one.largest) for one in found)
    return FirstPosition("", len(text.beginnings), min(_BEGINNING, len(text.rows[0][0])), tuple(rows))


def _agreement(one: np.ndarray | None, other: np.ndarray, which: np.ndarray) -> float | None:
    """Spearman's coefficient over the heads that were taken out; None where there are too few, or all are alike."""
    try:
        return None if one is None else spearman(torch.from_numpy(one[which]), torch.from_numpy(other[which]))
    except ManyheadsError:
        return None
