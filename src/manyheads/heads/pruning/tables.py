"""The report of `manyheads prune`, made from its object alone."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from manyheads.heads.address import format_numbers
from manyheads.heads.left_out import NotMeasured
from manyheads.heads.pruning.record import FormBytes, Losses, LossFigures, PruningReport, WrittenFolder
from manyheads.report.jsonform import as_json
from manyheads.report.units import bytes_both
from manyheads.report.value import Column, Report, Table

__all__ = ["report"]

_MOST_ROWS = 40


def report(told: PruningReport) -> Report:
    """What is printed of what `heads.pruning.run.pruning` tells."""
    removed, before = told.heads_removed, told.heads_before
    went = f"{removed} of {before} heads"
    if told.note:
        title = f"{went}, {_how(told)}, {'became' if told.written else 'would become'} zeros: nothing is smaller"
    else:
        title = f"{went} {'removed' if told.written else 'would be removed'}, {_how(told)}"
    tables = [_layers(told), _saves(told)]
    if isinstance(told.losses, Losses):
        tables.append(_losses(told.losses))
    return Report(f"{told.model}: {title}", tuple(tables), as_json(told), tuple(_notes(told)), _next(told))


def _how(told: PruningReport) -> str:
    rounds = told.rounds
    return told.chosen + (f", asked {rounds} times" if rounds > 1 else "")


def _layers(told: PruningReport) -> Table:
    rows = []
    for each in told.layers:
        if not each.new:
            continue
        name = f"{each.stage}/{each.layer}" if told.staged else str(each.layer)
        before, needed = each.kv_heads_before, each.kv_heads_needed
        rows.append(
            (
                name,
                _numbers(each.new),
                _numbers(each.kept),
                f"{before} -> {needed}" if needed < before else f"{before}",
            )
        )
    notes: tuple[str, ...] = ()
    if len(rows) > _MOST_ROWS:
        notes = (f"{len(rows) - _MOST_ROWS} more layers lose heads; the JSON has them all",)
        rows = rows[:_MOST_ROWS]
    columns = (Column("layer"), Column("go"), Column("stay"), Column("key/value heads", "right"))
    return Table("Which heads go?", columns, tuple(rows), notes)


def _numbers(heads: Sequence[int]) -> str:
    """ "0-3, 5", as --heads takes them."""
    return format_numbers(heads, between=", ") or "none (one stays, as zeros)"


def _saves(told: PruningReport) -> Table:
    now, stored = told.bytes_before, _stored(told)
    rows = (
        [("the file", bytes_both(stored), "", f"{told.stored_dtype or 'quantised'}, as it lies there")]
        if stored
        else []
    )
    rows.append(("as it is", bytes_both(now.weights), f"{now.cache_a_token:,} B", ""))
    for form in told.forms:
        if form.weights is None:
            rows.append((form.form, "none", "none", form.why))
        else:
            rows.append((form.form, bytes_both(form.weights), f"{form.cache_a_token:,} B", _why(form)))
    columns = (Column("form"), Column("weights", "right"), Column("cache a token", "right"), Column("why"))
    notes = [f"predicted, in {told.weight_dtype}"]
    if stored:
        least = min(form.weights for form in told.forms if form.weights is not None)
        notes[0] += (
            f", which the file is dequantised to: the smallest of these is {least / stored:.1f} times the file that it comes from"
        )
    if told.note:
        notes.append(told.note)
    return Table("What does it save?", columns, tuple(rows), tuple(notes))


def _stored(told: PruningReport) -> int:
    """Bytes of a file that holds the weights in fewer bytes than they are written in, else 0."""
    stored: int = told.stored_bytes or 0
    return stored if 0 < stored < 0.9 * told.bytes_before.weights else 0


def _why(form: FormBytes) -> str:
    words = {
        "uniform": "stock transformers loads it", "padded": "loads anywhere", "compact": "manyheads' load_pruned loads it"
    }[form.form]  # fmt: skip
    zeros = f"; {form.zeros} head{'s' * (form.zeros > 1)} of zeros" if form.zeros else ""
    return words + zeros


def _losses(losses: Losses) -> Table:
    rows = [("the model", *_change(losses))]
    init = losses.init
    if init is not None:
        rows.append(("at initialisation, the same heads", *_change(init.same_heads)))
        if init.own_heads is not None:
            rows.append(("at initialisation, its own", *_change(init.own_heads)))
    windows = losses.windows
    many = f"{windows} window{'s' * (windows != 1)}"
    spread = (
        "95%: Student's t of the differences of the windows, with and without these heads; they are of one text, so it "
        "holds for text like it"
    )
    notes = [
        f"{losses.unit}, on {losses.tokens:,} tokens of {losses.text} that nothing was chosen on, in {many}",
        f"{losses.objective}: {losses.loss_is}",
        spread if windows > 1 else "one window of text, so there is no interval; more tokens make more windows",
    ]
    if losses.goes_on:
        notes.append("the text goes on behind what was read of it: tokens= reads more")
    if init is not None:
        notes.append(
            "at initialisation nothing was trained afterwards: this says what pruning does there, not what training would"
        )
    columns = (
        Column(f"{'drift' if losses.objective == 'drift' else 'loss'} of"), Column("before", "right"),
        Column("after", "right"), Column("change", "right"), Column("95%", "right"), Column("of before", "right"),
    )  # fmt: skip
    return Table("What is lost?", columns, tuple(rows), tuple(notes))


def _change(found: LossFigures | Losses) -> tuple[str, str, str, str, str]:
    before, after, change, interval = found.before, found.after, found.change, found.interval
    share = f"{100 * change / before:+.2f}%" if before else ""
    spread = "none" if interval is None else f"{interval[0]:+.4f} to {interval[1]:+.4f}"
    return f"{before:.4f}", f"{after:.4f}", f"{change:+.4f}", spread, share


def _notes(told: PruningReport) -> list[str]:
    notes = []
    if told.gone_before:
        notes.append(f"gone before, nothing to do: {', '.join(told.gone_before)}")
    if told.gone_earlier:
        many = told.gone_earlier
        notes.append(
            f"{many} head{'s' * (many > 1)} went in earlier prunings; heads keep the numbers that they had before the first"
        )
    if isinstance(told.losses, NotMeasured):
        notes.append(f"no loss was measured: {told.losses.reason}")
    written = told.written
    if written is None:
        notes.append('nothing was written; output="FOLDER" writes the smaller model')
        return notes
    agree = (
        "as predicted" if written.tensor_bytes == written.predicted_bytes else f"predicted {written.predicted_bytes:,}"
    )
    notes.append(f"wrote {written.folder} in the form {written.form}: {written.why}")
    notes += _missed(told, written.form)
    notes.append(
        f"{written.tensor_bytes:,} bytes of weights, {agree}; its logits differ from the masked model's by at most "
        f"{written.largest_difference:.1e} (largest {written.largest_logit:.1f}) in {written.checked_in}"
        + _seen(written)
    )
    return notes


def _seen(written: WrittenFolder) -> str:
    """What the check in float64 leaves out: the difference that a user sees."""
    if written.checked_in == "float32":
        return ""
    return f", and by {written.largest_difference_float32:.1e} in float32, whose rounding this model magnifies"


def _missed(told: PruningReport, form: str) -> list[str]:
    """That the form which was written saves nothing, where another would."""
    forms = {each.form: each for each in told.forms}
    compact = forms["compact"]
    if form != "padded" or told.note or compact.weights is None or compact.cache_a_token is None:
        return []
    saved = told.bytes_before.weights - compact.weights
    cache = told.bytes_before.cache_a_token - compact.cache_a_token
    return [f'this form saves nothing; form="compact" saves {saved:,} bytes of weights and {cache:,} of cache a token']


def _next(told: PruningReport) -> str:
    written = told.written
    if written is not None:
        return f"manyheads xray {shlex.quote(written.folder)}"
    if told.note:
        more = told.heads_that_save
        return f"{told.typed} --heads {shlex.quote(more)}" if more else ""
    uniform = next(form for form in told.forms if form.form == "uniform")
    form = "" if uniform.weights is not None else " --form compact"
    return f"{told.typed} --heads {shlex.quote(told.heads)}{form} --output smaller"
