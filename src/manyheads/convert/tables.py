"""The report of `manyheads convert`, made from its record alone."""

from __future__ import annotations

import math
import shlex

from manyheads.convert.card import about
from manyheads.convert.record import ConversionReport, TextLoss
from manyheads.report.jsonform import as_json
from manyheads.report.units import bytes_both
from manyheads.report.value import Column, Report, Table

__all__ = ["report"]

_LONGEST_SAMPLE = 120


def report(found: ConversionReport) -> Report:
    """What is printed of a conversion."""
    title = f"{found.kv_heads_before} to {found.kv_heads} KV heads for {found.query_heads} query heads, method {found.method}"
    tables = [_saves(found), _hosts(found)]
    if found.losses:
        tables += [_losses(found), _kinds(found)]
    if found.probes:
        tables.append(_probes(found))
    if found.samples:
        tables.append(_samples(found))
    return Report(f"{found.model}: {title}", tuple(tables), as_json(found), tuple(_notes(found)), _next(found))


def _saves(found: ConversionReport) -> Table:
    cache = found.cache
    rows = [
        ("weights", bytes_both(found.weight_bytes_before), bytes_both(found.weight_bytes), _share(found.weight_bytes, found.weight_bytes_before)),
    ]  # fmt: skip
    if cache.a_token_before:
        rows.append(
            (
                "cache, a token",
                f"{cache.a_token_before:,} B",
                f"{cache.a_token:,} B",
                _share(cache.a_token, cache.a_token_before),
            )
        )
    if cache.held_before and cache.held:
        rows.append((f"cache, held at {cache.held_tokens} tokens", bytes_both(cache.held_before), bytes_both(cache.held),
                     _share(cache.held, cache.held_before)))  # fmt: skip
    columns = (Column("bytes of"), Column("before", "right"), Column("after", "right"), Column("of before", "right"))
    notes = ["a token: predicted, in 16 bits; held: what transformers' cache holds in float32, by its tensors"]
    return Table("What does it save?", columns, tuple(rows), tuple(notes if cache.a_token_before else ()))


def _share(now: int, before: int) -> str:
    return f"{now / before:.1%}" if before else ""


def _hosts(found: ConversionReport) -> Table:
    rows = [
        (each.software, _yes(each.loads), _yes(each.small_cache), "in this run" if each.tried else "no", each.how)
        for each in found.hosts
    ]
    columns = (Column("software"), Column("loads it"), Column("small cache"), Column("tried"), Column("how"))
    return Table("What loads it?", columns, tuple(rows))


def _yes(answer: bool) -> str:  # noqa: FBT001
    return "yes" if answer else "no"


def _losses(found: ConversionReport) -> Table:
    rows = [
        (about(each), f"{each.tokens:,}", f"{each.perplexity_before:.2f}", f"{each.perplexity:.2f}", f"{each.ratio:.3f}",
         _interval(each), f"{each.worst_ratio:.2f}", f"{each.kl:.3f}", f"{each.agreement:.1%}")
        for each in found.losses
    ]  # fmt: skip
    columns = (
        Column("held-out text"), Column("tokens", "right"), Column("perplexity", "right"), Column("after", "right"),
        Column("ratio", "right"), Column("95%", "right"), Column("worst window", "right"), Column("KL", "right"),
        Column("same token", "right"),
    )  # fmt: skip
    notes = (
        "both models on the same tokens in this run; KL(original || converted) in nats a token; same token: both find it the likeliest",
        "95%: Student's t over windows of one text, so it holds for text like it",
        f"calibrated: {_calibration(found)}; nothing stands before a window, and no chat template is used",
    )
    return Table("What is lost?", columns, tuple(rows), notes)


def _calibration(found: ConversionReport) -> str:
    if not found.calibration:
        return "on no text"
    parts = ", ".join(f"{part.tokens:,} tokens of {part.name}" for part in found.calibration)
    return f"on {parts}, in windows of {found.calibrated_window}"


def _interval(loss: TextLoss) -> str:
    if loss.ratio_interval is None or not all(map(math.isfinite, loss.ratio_interval)):
        return "none"
    return f"{loss.ratio_interval[0]:.3f} to {loss.ratio_interval[1]:.3f}"


def _kinds(found: ConversionReport) -> Table:
    rows = [
        (about(text), each.kind, f"{each.tokens:,}", f"{each.before:.3f}", f"{each.after:.3f}", f"{each.after - each.before:+.3f}")
        for text in found.losses
        for each in text.by_kind
    ]  # fmt: skip
    columns = (
        Column("held-out text"), Column("tokens that are"), Column("count", "right"), Column("loss before", "right"),
        Column("after", "right"), Column("change", "right"),
    )  # fmt: skip
    notes = (
        (
            "copied: the pair with the token before stood in the window; rare: of the least frequent tenth of the text; late: in the second half "
            "of its window; nats a token"
        ),
    )
    return Table("On which tokens?", columns, tuple(rows), notes)


def _probes(found: ConversionReport) -> Table:
    rows = [(each.name, f"{each.before:.3f}", f"{each.after:.3f}", each.meaning) for each in found.probes]
    columns = (Column("probe"), Column("before", "right"), Column("after", "right"), Column("what it is"))
    return Table("What can it still do?", columns, tuple(rows))


def _samples(found: ConversionReport) -> Table:
    rows = [tuple(_short(text) for text in (each.prompt, each.before, each.after)) for each in found.samples]
    columns = (Column("a text begins"), Column("the original goes on"), Column("the converted one"))
    return Table("How does it go on?", columns, tuple(rows), ("the likeliest token at each step",))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_SAMPLE else f"...{line[3 - _LONGEST_SAMPLE :]}"


def _notes(found: ConversionReport) -> list[str]:
    notes = list(found.notes)
    if found.embedding_cosine is not None:
        notes.append(
            f"mean cosine between its embeddings of held-out text and the original's: {found.embedding_cosine:.4f}"
        )
    elif found.unmeasured:
        notes.append(f"no loss was measured: {found.unmeasured}")
    worst = max((each.ratio for each in found.losses), default=0.0)
    if not found.accepted:
        notes.append(
            f"the loss ratio {worst:.3f} is above max_ratio={found.most_ratio:g}: nothing was written; accept_loss=True writes it "
            f'all the same, and more KV heads, method="layerfit" or healing lose less'
        )
    elif found.written is None:
        notes.append('nothing was written; output="FOLDER" writes the converted model')
    else:
        notes.append(
            f"wrote {found.written.folder}: stock transformers loads it, and its logits differ from those of the weights in memory by at "
            f"most {found.written.largest_difference:.1e}"
        )
    return notes


def _next(found: ConversionReport) -> str:
    return f"manyheads xray {shlex.quote(found.written.folder)}" if found.written is not None else ""
