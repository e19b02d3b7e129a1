"""How much each head matters to a model that is x-rayed, and how many can go: the numbers of that part of the section."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, format_head
from manyheads.heads.alignment import Frame
from manyheads.heads.alignment import frame as usual_frame
from manyheads.heads.budget import removable
from manyheads.heads.importance import FIRST_ORDER, Importance, importance, rank_correlation
from manyheads.heads.metrics import Batch
from manyheads.heads.objective import DRIFT, Objective, objective
from manyheads.heads.pace import Pace
from manyheads.heads.places import place_of
from manyheads.heads.significance import mean_interval
from manyheads.heads.watching import longest_text
from manyheads.models.xray_parts import Running
from manyheads.report.jsonform import finite

__all__ = ["EXTREMES", "HALVES", "WINDOWS", "WINDOW_TOKENS", "around", "weighed"]

WINDOW_TOKENS = 128
WINDOWS = 8
EXTREMES = 8
"""As many of the heads that seem to matter most, and least, are taken out to see whether they do."""
HALVES = ("the first half of the text", "the second half")
_LEAST_WINDOW = 16
_WAYS = ("zero", "mean")
_SHARE = 0.01

Say = Callable[[str], None]


def weighed(run: Running, *, every: bool, say: Say) -> dict[str, Any]:
    """The importance of every head by what a model of its kind is judged by (`heads.objective`), and, as `removable`, how
    many can go.

    every   take all heads out, not only those at either end of the first-order scores. Where there are no such scores all
            are taken out anyway
    Raises ManyheadsError where text says nothing of the model, or is too short.
    """
    frame = around(run)
    judge = objective(run.loaded.model, run.loaded.tokenizer, around=frame, seed=run.seed)
    room = longest_text(run.loaded.model, run.limit or WINDOW_TOKENS + len(frame.before) + len(frame.after))
    rows = [_windows(half, room=room - len(frame.before) - len(frame.after)) for half in _halves(run.ids)]
    batches, pace = judge.batches(rows[0] + rows[1]), Pace(say)
    halves = [batches[: len(rows[0])], batches[len(rows[0]) :]]
    # Half of the windows will do where it takes a pass for each head and window.
    fewer = [half[::2] for half in halves]
    first, exact = _both(run, judge, halves, fewer, every=every, pace=pace)
    told = _told(first, exact, every=every)
    found, parts = (exact, fewer) if first is None or every else (first, halves)
    orders = [_order(found, len(parts[0]), first=half == 1) for half in range(2)]
    told["removable"] = _removable(run, orders, halves, judge=judge, pace=pace)
    return told | judge.as_json() | {
        "windows": len(batches), "window_tokens": len(rows[0][0]), "exact_windows": len(fewer[0]) + len(fewer[1]),
    }  # fmt: skip


def around(run: Running) -> Frame:
    """What an encoder reads is framed as its tokenizer does; before running text stands what was asked for."""
    if run.stack.encoder is not None:
        return usual_frame(run.loaded.tokenizer)
    return Frame((int(run.loaded.tokenizer.bos_token_id),) if run.bos else ())


def _both(
    run: Running, judge: Objective, halves: Sequence[Sequence[Batch]], fewer: Sequence[Sequence[Batch]], *, every: bool,
    pace: Pace,
) -> tuple[Importance | None, Importance]:  # fmt: skip
    """First-order scores on all windows, None where there are none, and exact ones on half of them."""
    model, first = run.loaded.model, None
    if judge.first_order:
        batches = [batch for half in halves for batch in half]
        pace.say(f"importance of every head, for {judge.name}: one backward pass on each of {len(batches)} windows")
        first = importance(model, batches, metric=judge.metric, say=pace.counted("windows"))
    order = None if first is None else first.heads() if every else _extremes(first)
    which = "all" if order is None else len(order)
    pace.say(f"taking {which} heads out, one at a time, for their mean")
    judged = [batch for half in fewer for batch in half]
    exact = importance(model, judged, metric=judge.metric, method="mean", heads=order, say=pace.counted("passes"))
    return first, exact


def _halves(ids: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    return ids[: len(ids) // 2], ids[len(ids) // 2 :]


def _windows(ids: Sequence[int], *, room: int) -> list[list[int]]:
    """Up to WINDOWS windows spread over `ids`, all of one length, at most `room`."""
    width = min(WINDOW_TOKENS, room, max(len(ids) // WINDOWS, _LEAST_WINDOW))
    count = min(len(ids) // width, WINDOWS)
    if count < 2:
        raise ManyheadsError(
            f"each half of the text is {len(ids)} tokens; importance needs two windows of {_LEAST_WINDOW} in each, "
            f"{4 * _LEAST_WINDOW} tokens in all"
        )
    starts = [n * (len(ids) - width) // (count - 1) for n in range(count)]
    return [list(ids[start : start + width]) for start in starts]


def _removable(
    run: Running, orders: Sequence[Sequence[Head]], halves: Sequence[Sequence[Batch]], *, judge: Objective, pace: Pace
) -> dict[str, Any]:  # fmt: skip
    """How many heads of `orders[i]`, which comes from the other half, can go on `halves[i]`."""
    if judge.name == DRIFT:
        why = "it has no language head, so it is judged by the drift of its output, and 1% more than a drift of 0 is 0"
        return {"reason": why, "texts": []}
    rows = []
    for number, half in enumerate(halves):
        for how in _WAYS:
            pace.say(f"taking heads out until the loss is {_SHARE:.0%} higher: {HALVES[number]}, {how}")
            one = removable(
                run.loaded.model, half, orders[number], how=how, share=_SHARE, metric=judge.metric, seed=run.seed,
                say=pace.passing(),
            )  # fmt: skip
            rows.append(
                {
                    "text": HALVES[number], "how": how, "heads": one.heads, "low": one.low, "high": one.high,
                    "beyond": one.beyond, "total": one.total, "counts": list(one.counts), "losses": list(one.losses),
                }
            )  # fmt: skip
    return {"reason": "", "share": _SHARE, "texts": rows}


def _extremes(found: Importance) -> tuple[Head, ...]:
    ranking = found.ranking()
    return ranking if len(ranking) <= 2 * EXTREMES else (*ranking[:EXTREMES], *ranking[-EXTREMES:])


def _order(found: Importance, count: int, *, first: bool) -> list[Head]:
    """Least important first, by the first `count` of the batches alone or by the rest."""
    table = (found.by_batch[:count] if first else found.by_batch[count:]).mean(0)
    row = {(place.stage, place.layer): n for n, place in enumerate(found.places)}
    return sorted(found.heads(), key=lambda head: float(table[row[head.stage, head.layer], head.head]))


def _told(first: Importance | None, exact: Importance, *, every: bool) -> dict[str, Any]:
    """A row a head; `method` is that of `score`, which the grid shows and heads are ordered by."""
    judged = set(exact.heads())
    low, high = mean_interval(exact.by_batch.numpy(), exact.weights.numpy())
    exactly = every or first is None
    rows = []
    for head in (first or exact).heads():
        loss = exact.score(head) if head in judged else None
        at = place_of(exact.places, head), head.head
        own = first.score(head) if first is not None else None
        rows.append(
            {
                "head": format_head(head), "first_order": own, "loss_without": loss,
                "loss_low": finite(float(low[at])), "loss_high": finite(float(high[at])), "score": loss if exactly else own,
            }
        )  # fmt: skip
    return {
        "method": "mean" if exactly else FIRST_ORDER, "exact_heads": len(judged),
        "baseline": (first or exact).baseline, "heads": rows, "rank_correlation": _agreement(first, exact),
        "first_order_seconds": first.seconds if first is not None else None, "exact_seconds": exact.seconds,
        "prefix_reused": exact.reused,
    }  # fmt: skip


def _agreement(first: Importance | None, exact: Importance) -> float | None:
    try:
        return rank_correlation(first, exact) if first is not None else None
    except ManyheadsError:  # too few heads, or all alike
        return None
