"""The report of an x-ray, made from it alone: one table a question."""

from __future__ import annotations

import math

from manyheads.cost.tables import tables as price_tables
from manyheads.cost.tables import title
from manyheads.models.parameter_count import ParameterCheck
from manyheads.models.resident_bytes import CacheBytes, CacheCheck
from manyheads.models.scoring import GOES_ON
from manyheads.report import units
from manyheads.report.jsonform import as_json
from manyheads.report.value import Column, Report, Table
from manyheads.xray.heads_tables import tables as heads_tables
from manyheads.xray.record import TextFound, XRay

__all__ = ["PARAMETERS_QUESTION", "page_tables", "report", "tables", "verdict"]

PARAMETERS_QUESTION = "Were as many parameters loaded as predicted?"
_MOST_NAMES = 8
_CACHE_NOTES = (
    "ideal: what a cache must hold; measured as the cached positions that the next token's output depends on",
    "logical: what the cache says it holds; storage: what its tensors keep allocated, each storage counted once",
)


def report(found: XRay) -> Report:
    """What `manyheads xray` prints of it."""
    notes = (verdict(found), *found.notes)
    return Report(title(found.cost), tables(found), as_json(found), notes, found.next_command)


def tables(found: XRay) -> tuple[Table, ...]:
    """Every table in reading order."""
    return (
        _shape(found),
        _parameters(found.parameters),
        *price_tables(found.cost),
        *_on_text(found),
        *_heads(found),
        _run(found),
    )


def page_tables(found: XRay) -> tuple[Table, ...]:
    """The same in the order of the page: what the heads do, what it costs, and what was checked on the way."""
    checked = (_shape(found), _parameters(found.parameters), *_on_text(found))
    return *_heads(found), *price_tables(found.cost), *checked, _run(found)


def _heads(found: XRay) -> tuple[Table, ...]:
    return heads_tables(found.heads) if found.heads is not None else ()


def _on_text(found: XRay) -> tuple[Table, ...]:
    cache = found.cache
    held = () if cache.prefill is None or cache.step is None else (_cache(cache, cache.prefill, cache.step),)
    return _text(found.text), *held


def verdict(found: XRay) -> str:
    """One sentence: whether what was measured is what was predicted."""
    compared = [one for one in found.cache.numbers if one.equal is not None]
    wrong = sum(not one.equal for one in compared) + (not found.parameters.equal)
    if wrong:
        return f"MISMATCH: {wrong} of {len(compared) + 1} numbers are not what was predicted; the tables show which"
    if not compared:
        return (
            f"as predicted: the parameters; the cache was not compared: {found.cache.reason or 'nothing predicts it'}"
        )
    return f"as predicted, to the byte: the parameters and all {len(compared)} numbers of the cache"


def _columns(*names: str) -> tuple[Column, ...]:
    """The first column holds words, the others numbers."""
    return tuple(Column(name, "left" if i == 0 else "right") for i, name in enumerate(names))


def _shape(found: XRay) -> Table:
    own = found.shape
    kv_heads = own.num_key_value_heads
    rows = [
        ("class in transformers", found.class_name),
        ("layers", units.number(own.layers)),
        ("width", units.number(own.d_model)),
        ("query heads", units.number(own.num_attention_heads)),
        ("KV heads", units.number(kv_heads) if kv_heads is not None else "-"),
        ("head size", units.number(own.head_dim)),
        ("vocabulary", units.number(own.vocab_size)),
        ("context", units.tokens(own.context) if own.context else "not said"),
        ("stored as", own.stored_dtype or "not said"),
    ]
    if own.encoder_layers:
        rows.insert(2, ("encoder layers", units.number(own.encoder_layers)))
    columns = (Column("measure"), Column("value", "right"))
    return Table("What is it?", columns, tuple(rows))


def _compared(predicted: int | None, measured: int | None) -> str:
    if predicted is None or measured is None:
        return "not compared"
    if predicted == measured:
        return "equal"
    return f"DIFFERS by {measured - predicted:+,}"


def _parameters(own: ParameterCheck) -> Table:
    rows = [_row("parameters", own.predicted, own.loaded)]
    if own.predicted_buffers or own.loaded_buffers:
        rows.append(_row("stored buffers", own.predicted_buffers, own.loaded_buffers))
    notes = ["each tensor once: a head that is the token table is not counted again"]
    if own.task_head:
        notes.append(f"a head for a task stands on it and is not counted: {own.task_head:,} parameters")
    for tensors, words in ((own.missing, "predicted, not loaded"), (own.extra, "loaded, not predicted")):
        names = [f"{item.name} ({item.elements:,})" for item in tensors]
        if names:
            more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
            notes.append(f"{words}: {', '.join(names[:_MOST_NAMES])}{more}")
    notes += [f"in one place of memory, counted once: {', '.join(names)}" for names in own.shared[:_MOST_NAMES]]
    return Table(PARAMETERS_QUESTION, _columns("count", "predicted", "loaded", "they are"), tuple(rows), tuple(notes))


def _row(label: str, predicted: int, measured: int) -> tuple[str, str, str, str]:
    return label, units.number(predicted), units.number(measured), _compared(predicted, measured)


def _text(own: TextFound) -> Table:
    question = f"What does it make of {own.name}?"
    if own.scores is None or own.shuffled is None:
        return _unscored(question, own)
    rows = [
        (
            label, units.number(found.scored_tokens), f"{found.loss:.4f}" if math.isfinite(found.loss) else "not finite",
            _digits(found.perplexity),
        )
        for label, found in (("as it is written", own.scores), ("the same tokens, shuffled", own.shuffled))
    ]  # fmt: skip
    notes = [f"{own.tokens:,} tokens {_how_read(own)}"]
    notes += [GOES_ON.format(tokens=own.tokens)] if own.goes_on else []
    if own.times_more_perplexed_when_shuffled and math.isfinite(own.times_more_perplexed_when_shuffled):
        notes.append(f"shuffled it is {own.times_more_perplexed_when_shuffled:,.0f} times as perplexed")
    if own.tokenizer_adds_bos and not own.bos:
        notes.append(
            "this tokenizer adds a BOS by itself, and some models are lost without it: bos=True puts one there"
        )
    notes.append(f"sha256 of the text: {own.sha256}")
    columns = _columns("text", "tokens scored", "loss, nats a token", "perplexity")
    return Table(question, columns, tuple(rows), tuple(notes))


def _how_read(own: TextFound) -> str:
    bos = "a BOS before each" if own.bos else "no BOS"
    return f"in windows of {own.window:,} that do not overlap, {bos}, the first token of each not scored"


def _digits(value: float) -> str:
    return "not finite" if not math.isfinite(value) else f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}"


def _unscored(question: str, own: TextFound) -> Table:
    rows = [("perplexity", "none"), ("why", own.reason)]
    run = own.forward
    if run is not None:
        rows.append(("one forward run", f"{run.tokens:,} tokens in {units.duration(run.seconds)}"))
        rows.append(
            ("its output", f"{' x '.join(map(str, run.output_shape))}, {'all' if run.finite else 'NOT all'} finite")
        )
    notes = (f"sha256 of the text: {own.sha256}",) if own.tokens else ("random tokens were used instead of text",)
    return Table(question, (Column("measure"), Column("value")), tuple(rows), notes)


def _cache(own: CacheCheck, prefill: CacheBytes, step: CacheBytes) -> Table:
    rows, reasons = [], []
    for held, label in ((prefill, f"{own.prompt_tokens:,} tokens"), (step, "one more")):
        for which, row in (("ideal", held.ideal), ("logical", held.logical), ("storage", held.storage)):
            texts = [units.exact(n) if n is not None else "-" for n in (row.predicted, row.measured)]
            rows.append((f"{which}, after {label}", *texts, _compared(row.predicted, row.measured)))
            if row.reason and row.reason not in reasons:
                reasons.append(row.reason)
    notes = [*_CACHE_NOTES, *(f"not compared: {reason}" for reason in reasons)]
    if own.source_tokens:
        notes.append(f"with the {own.source_tokens:,} tokens of the encoder's that cross-attention keeps")
    question = f"Does its {own.kind} hold what was predicted, in {own.dtype}?"
    return Table(question, _columns("cache", "predicted", "measured", "they are"), tuple(rows), tuple(notes))


def _run(found: XRay) -> Table:
    own, spent, text = found.machine, found.timings, found.text
    threads = f"{own['threads']} thread{'s' * (own['threads'] != 1)}"
    rows = [
        ("date", found.date),
        (
            "ran in",
            f"{found.dtype} on {found.device}, seed {found.seed}, {found.shape.attention_implementation}",
        ),
        ("machine", f"{own['processor']}, {threads} of {own['cores']} cores, {own['system']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in found.versions.items())),
        ("loading", units.duration(spent.load_seconds)),
    ]
    for scores, label in ((text.scores, "reading the text"), (text.shuffled, "reading it shuffled")):
        if scores is not None:
            rows.append((label, units.duration(scores.seconds)))
    if found.cache.numbers:
        rows.append(("looking into the cache", units.duration(spent.cache_seconds)))
    rows += [(f"looking into its {key}", units.duration(seconds)) for key, seconds in spent.parts_seconds.items()]
    notes = (f"command: {found.command}",)
    return Table("How was this measured?", (Column("what"), Column("value")), tuple(rows), notes)
