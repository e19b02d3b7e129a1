"""The report of `manyheads prune`, made from its object alone."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from typing import Any

from manyheads.report.units import bytes_both
from manyheads.report.value import Column, Report, Table

__all__ = ["report"]

_MOST_ROWS = 40


def report(told: Mapping[str, Any]) -> Report:
    """What is printed of what `heads.pruning.pruning` tells."""
    removed, before = told["heads_removed"], told["heads_before"]
    verb = "removed" if told["written"] else "would be removed"
    tables = [_layers(told), _saves(told)]
    if told["losses"]["reason"] == "":
        tables.append(_losses(told["losses"]))
    return Report(
        f"{told['model']}: {removed} of {before} heads {verb}, {_how(told)}", tuple(tables), told, tuple(_notes(told)), _next(told)
    )  # fmt: skip


def _how(told: Mapping[str, Any]) -> str:
    rounds = told["rounds"]
    return told["chosen"] + (f", asked {rounds} times" if rounds > 1 else "")


def _layers(told: Mapping[str, Any]) -> Table:
    rows = []
    for each in told["layers"]:
        if not each["new"]:
            continue
        name = f"{each['stage']}/{each['layer']}" if told["staged"] else str(each["layer"])
        before, needed = each["kv_heads_before"], each["kv_heads_needed"]
        rows.append(
            (
                name,
                _numbers(each["new"]),
                _numbers(each["kept"]),
                f"{before} -> {needed}" if needed < before else f"{before}",
            )
        )
    notes: tuple[str, ...] = ()
    if len(rows) > _MOST_ROWS:
        notes = (f"{len(rows) - _MOST_ROWS} more layers lose heads; --json has them all",)
        rows = rows[:_MOST_ROWS]
    columns = (Column("layer"), Column("go"), Column("stay"), Column("key/value heads", "right"))
    return Table("Which heads go?", columns, tuple(rows), notes)


def _numbers(heads: list[int]) -> str:
    """ "0-3, 5": runs of numbers, shortened."""
    runs: list[list[int]] = []
    for head in heads:
        if runs and head == runs[-1][-1] + 1:
            runs[-1].append(head)
        else:
            runs.append([head])
    return (
        ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
        or "none (one stays, as zeros)"
    )


def _saves(told: Mapping[str, Any]) -> Table:
    now = told["bytes_before"]
    rows = [("as it is", bytes_both(now["weights"]), f"{now['cache_a_token']:,} B", "")]
    for form in told["forms"]:
        if form["weights"] is None:
            rows.append((form["form"], "none", "none", form["why"]))
        else:
            rows.append((form["form"], bytes_both(form["weights"]), f"{form['cache_a_token']:,} B", _why(form)))
    columns = (Column("form"), Column("weights", "right"), Column("cache a token", "right"), Column("why"))
    return Table("What does it save?", columns, tuple(rows), (f"predicted, in {told['weight_dtype']}",))


def _why(form: Mapping[str, Any]) -> str:
    words = {
        "uniform": "stock transformers loads it", "padded": "loads anywhere", "compact": "manyheads' load_pruned loads it"
    }[form["form"]]  # fmt: skip
    zeros = f"; {form['zeros']} head{'s' * (form['zeros'] > 1)} of zeros" if form["zeros"] else ""
    return words + zeros


def _losses(losses: Mapping[str, Any]) -> Table:
    rows = [("the model", *_pair(losses["before"], losses["after"]))]
    init = losses["init"]
    if init is not None:
        rows.append(("at initialisation, the same heads", *_pair(init["before"], init["after_same_heads"])))
        if init["after_own_heads"] is not None:
            rows.append(("at initialisation, its own", *_pair(init["before"], init["after_own_heads"])))
    notes = [
        f"{losses['unit']}, on {losses['tokens']:,} tokens of {losses['text']} that nothing was chosen on",
        f"{losses['objective']}: {losses['loss_is']}",
    ]
    if init is not None:
        notes.append(
            "at initialisation nothing was trained afterwards: this says what pruning does there, not what training would"
        )
    columns = (
        Column(f"{'drift' if losses['objective'] == 'drift' else 'loss'} of"),
        Column("before", "right"),
        Column("after", "right"),
        Column("change", "right"),
    )
    return Table("What is lost?", columns, tuple(rows), tuple(notes))


def _pair(before: float | None, after: float | None) -> tuple[str, str, str]:
    if before is None or after is None:
        first, second = ("not finite" if value is None else f"{value:.4f}" for value in (before, after))
        return first, second, ""
    change = f"{100 * (after - before) / before:+.2f}%" if before and math.isfinite(before) else ""
    return f"{before:.4f}", f"{after:.4f}", change


def _notes(told: Mapping[str, Any]) -> list[str]:
    notes = []
    if told["gone_before"]:
        notes.append(f"gone before, nothing to do: {', '.join(told['gone_before'])}")
    if told["losses"]["reason"]:
        notes.append(f"no loss was measured: {told['losses']['reason']}")
    written = told["written"]
    if written is None:
        notes.append("nothing was written; --output FOLDER writes the smaller model")
        return notes
    agree = (
        "as predicted"
        if written["tensor_bytes"] == written["predicted_bytes"]
        else f"predicted {written['predicted_bytes']:,}"
    )
    notes.append(f"wrote {written['folder']} in the form {written['form']}: {written['why']}")
    notes.append(
        f"{written['tensor_bytes']:,} bytes of weights, {agree}; its logits differ from the masked model's by at most "
        f"{written['largest_difference']:.1e} (largest {written['largest_logit']:.1f}) in {written['checked_in']}"
    )
    return notes


def _next(told: Mapping[str, Any]) -> str:
    written = told["written"]
    if written is not None:
        return f"manyheads xray {shlex.quote(written['folder'])}"
    return f"manyheads cost {shlex.quote(told['source'])}" if told["source"] else ""
