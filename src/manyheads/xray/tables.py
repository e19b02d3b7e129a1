"""The tables of an x-ray, made from its object alone and the tables of the price: one table a question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manyheads.models.scoring import GOES_ON
from manyheads.report import units
from manyheads.report.value import Column, Table

__all__ = ["PARAMETERS_QUESTION", "tables", "verdict"]

Data = Mapping[str, Any]
PARAMETERS_QUESTION = "Were as many parameters loaded as predicted?"
_MOST_NAMES = 8
_CACHE_NOTES = (
    "ideal: what a cache must hold; measured as the cached positions that the next token's output depends on",
    "logical: what the cache says it holds; storage: what its tensors keep allocated, each storage counted once",
)


def tables(data: Data, priced: tuple[Table, ...]) -> tuple[Table, ...]:
    """Every table in reading order; `priced` are those of the cost."""
    made = [_shape(data), _parameters(data), *priced, _text(data)]
    if data["cache"].get("prefill"):
        made.append(_cache(data))
    return (*made, _run(data))


def verdict(data: Data) -> str:
    """One sentence: whether what was measured is what was predicted."""
    cache, parameters = data["cache"], data["parameters"]
    compared = [row for when in ("prefill", "step") for row in cache.get(when, {}).values() if row["equal"] is not None]
    wrong = sum(not row["equal"] for row in compared) + (not parameters["equal"])
    if wrong:
        return f"MISMATCH: {wrong} of {len(compared) + 1} numbers are not what was predicted; the tables show which"
    if not compared:
        return f"as predicted: the parameters; the cache was not compared: {cache['reason'] or 'nothing predicts it'}"
    return f"as predicted, to the byte: the parameters and all {len(compared)} numbers of the cache"


def _columns(*names: str) -> tuple[Column, ...]:
    """The first column holds words, the others numbers."""
    return tuple(Column(name, "left" if i == 0 else "right") for i, name in enumerate(names))


def _shape(data: Data) -> Table:
    own = data["shape"]
    kv_heads = own["num_key_value_heads"]
    rows = [
        ("class in transformers", data["class"]),
        ("layers", units.number(own["layers"])),
        ("width", units.number(own["d_model"])),
        ("query heads", units.number(own["num_attention_heads"])),
        ("KV heads", units.number(kv_heads) if kv_heads is not None else "-"),
        ("head size", units.number(own["head_dim"])),
        ("vocabulary", units.number(own["vocab_size"])),
        ("context", units.tokens(own["context"]) if own["context"] else "not said"),
        ("stored as", own["stored_dtype"] or "not said"),
    ]
    if own["encoder_layers"]:
        rows.insert(2, ("encoder layers", units.number(own["encoder_layers"])))
    columns = (Column("measure"), Column("value", "right"))
    return Table("What is it?", columns, tuple(rows))


def _compared(predicted: int | None, measured: int | None) -> str:
    if predicted is None or measured is None:
        return "not compared"
    if predicted == measured:
        return "equal"
    return f"DIFFERS by {measured - predicted:+,}"


def _parameters(data: Data) -> Table:
    own = data["parameters"]
    rows = [_row("parameters", own["predicted"], own["loaded"])]
    if own["predicted_buffers"] or own["loaded_buffers"]:
        rows.append(_row("stored buffers", own["predicted_buffers"], own["loaded_buffers"]))
    notes = ["each tensor once: a head that is the token table is not counted again"]
    if own["task_head"]:
        notes.append(f"a head for a task stands on it and is not counted: {own['task_head']:,} parameters")
    for key, words in (("missing", "predicted, not loaded"), ("extra", "loaded, not predicted")):
        names = [f"{item['name']} ({item['elements']:,})" for item in own[key]]
        if names:
            more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
            notes.append(f"{words}: {', '.join(names[:_MOST_NAMES])}{more}")
    notes += [f"in one place of memory, counted once: {', '.join(names)}" for names in own["shared"][:_MOST_NAMES]]
    return Table(PARAMETERS_QUESTION, _columns("count", "predicted", "loaded", "they are"), tuple(rows), tuple(notes))


def _row(label: str, predicted: int, measured: int) -> tuple[str, str, str, str]:
    return label, units.number(predicted), units.number(measured), _compared(predicted, measured)


def _text(data: Data) -> Table:
    own = data["text"]
    question = f"What does it make of {own['name']}?"
    if own["scores"] is None:
        return _unscored(question, own)
    rows = []
    for label, key in (("as it is written", "scores"), ("the same tokens, shuffled", "shuffled")):
        found = own[key]
        loss, perplexity = found["loss"], found["perplexity"]
        rows.append(
            (
                label,
                units.number(found["scored_tokens"]),
                f"{loss:.4f}" if loss is not None else "not finite",
                _digits(perplexity) if perplexity is not None else "not finite",
            )
        )
    notes = [f"{own['tokens']:,} tokens {_how_read(own)}"]
    notes += [GOES_ON.format(tokens=own["tokens"])] if own["goes_on"] else []
    if own["times_more_perplexed_when_shuffled"]:
        notes.append(f"shuffled it is {own['times_more_perplexed_when_shuffled']:,.0f} times as perplexed")
    if own["tokenizer_adds_bos"] and not own["bos"]:
        notes.append(
            "this tokenizer adds a BOS by itself, and some models are lost without it: bos=True puts one there"
        )
    notes.append(f"sha256 of the text: {own['sha256']}")
    columns = _columns("text", "tokens scored", "loss, nats a token", "perplexity")
    return Table(question, columns, tuple(rows), tuple(notes))


def _how_read(own: Data) -> str:
    bos = "a BOS before each" if own["bos"] else "no BOS"
    return f"in windows of {own['window']:,} that do not overlap, {bos}, the first token of each not scored"


def _digits(value: float) -> str:
    return f"{value:,.2f}" if value < 1_000 else f"{value:,.0f}"


def _unscored(question: str, own: Data) -> Table:
    rows = [("perplexity", "none"), ("why", own["reason"])]
    run = own.get("forward")
    if run:
        rows.append(("one forward run", f"{run['tokens']:,} tokens in {units.duration(run['seconds'])}"))
        rows.append(("its output", f"{' x '.join(map(str, run['output_shape']))}, {_finite(run)}"))
    notes = (f"sha256 of the text: {own['sha256']}",) if own["tokens"] else ("random tokens were used instead of text",)
    return Table(question, (Column("measure"), Column("value")), tuple(rows), notes)


def _finite(run: Data) -> str:
    return "all finite" if run["finite"] else "NOT all finite"


def _cache(data: Data) -> Table:
    own = data["cache"]
    rows, reasons = [], []
    for when, label in (("prefill", f"{own['prompt_tokens']:,} tokens"), ("step", "one more")):
        for which in ("ideal", "logical", "storage"):
            row = own[when][which]
            texts = [units.exact(n) if n is not None else "-" for n in (row["predicted"], row["measured"])]
            rows.append((f"{which}, after {label}", *texts, _compared(row["predicted"], row["measured"])))
            if row["reason"] and row["reason"] not in reasons:
                reasons.append(row["reason"])
    notes = [*_CACHE_NOTES, *(f"not compared: {reason}" for reason in reasons)]
    if own["source_tokens"]:
        notes.append(f"with the {own['source_tokens']:,} tokens of the encoder's that cross-attention keeps")
    question = f"Does its {own['class']} hold what was predicted, in {own['dtype']}?"
    return Table(question, _columns("cache", "predicted", "measured", "they are"), tuple(rows), tuple(notes))


def _run(data: Data) -> Table:
    own, spent, text = data["machine"], data["timings"], data["text"]
    threads = f"{own['threads']} thread{'s' * (own['threads'] != 1)}"
    rows = [
        ("date", data["date"]),
        (
            "ran in",
            f"{data['dtype']} on {data['device']}, seed {data['seed']}, {data['shape']['attention_implementation']}",
        ),
        ("machine", f"{own['processor']}, {threads} of {own['cores']} cores, {own['system']}"),
        ("versions", ", ".join(f"{name} {version}" for name, version in data["versions"].items())),
        ("loading", units.duration(spent["load_seconds"])),
    ]
    for key, label in (("scores", "reading the text"), ("shuffled", "reading it shuffled")):
        if text[key]:
            rows.append((label, units.duration(text[key]["seconds"])))
    if data["cache"].get("prefill"):
        rows.append(("looking into the cache", units.duration(spent["cache_seconds"])))
    rows += [(f"looking into its {key}", units.duration(seconds)) for key, seconds in spent["parts_seconds"].items()]
    notes = (f"command: {data['command']}",)
    return Table("How was this measured?", (Column("what"), Column("value")), tuple(rows), notes)
