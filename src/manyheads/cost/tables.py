"""The report of a price, made from it alone: one table a question."""

from __future__ import annotations

from manyheads.cost.engine_transformers import BESIDE_THE_POINT
from manyheads.cost.fit import Fit
from manyheads.cost.parameters import PARTS
from manyheads.cost.price_record import Decode, HardwareTimes, Prefill, Price, Rank, Training
from manyheads.cost.roofline import StepTime
from manyheads.report import units
from manyheads.report.jsonform import as_json
from manyheads.report.value import Column, Report, Table

__all__ = ["report", "tables", "title"]

LEFT, RIGHT = "left", "right"


def report(price: Price) -> Report:
    """What `manyheads cost` prints of it."""
    return Report(title(price), tables(price), as_json(price), price.notes)


def title(price: Price) -> str:
    """The model and its layers, with the layer where all are alike."""
    uniform, many = len(price.layer_specs) == 1, "s" * (price.layers != 1)
    return f"{price.model}: {price.layers} layer{many}" + (f" of {price.spec}" if uniform else "")


def tables(price: Price) -> tuple[Table, ...]:
    """Every table that a price has something for, in reading order."""
    made = [_attention(price), _parameters(price)]
    if price.kv_cache.bytes:
        made.append(_cache(price))
    if len(price.by_context) > 1:
        made.append(_contexts(price))
    if price.engines:
        made.append(_engines(price))
    made.append(_steps(price))
    if price.hardware is not None:
        made.append(_times(price.hardware))
    if price.tensor_parallel is not None:
        made.append(_ranks(price, price.tensor_parallel))
    if price.memory is not None:
        made.append(_memory(price.memory, price.tensor_parallel.ranks if price.tensor_parallel is not None else 1))
    if price.what_if:
        made.append(_what_if(price))
    return tuple(made)


def _columns(*names: str) -> tuple[Column, ...]:
    """The first column holds words, the others numbers."""
    return tuple(Column(name, LEFT if i == 0 else RIGHT) for i, name in enumerate(names))


def _attention(price: Price) -> Table:
    rows, several = [], len({(s.role, s.kind) for s in price.layer_specs}) > 1
    for spec in price.layer_specs:
        where = f"{spec.role} {spec.kind}: " if several else ""
        rows.append((where + spec.spec, f"{spec.layers}", spec.scheme.upper(), units.number(spec.parameters)))
    return Table("What is its attention?", _columns("layer", "layers", "scheme", "weights a layer"), tuple(rows))


def _parameters(price: Price) -> Table:
    own = price.parameters
    rows = [
        (part, units.number(number), f"{100 * number / own.total:.1f}%")
        for part in PARTS
        if (number := getattr(own, part))
    ]
    rows.append(("total", units.number(own.total), units.count(own.total)))
    notes = [f"{units.bytes_both(own.bytes)} in {price.weight_dtype}"]
    if own.head_kind == "tied":
        notes.append(f"the head is the token table, counted once; stored twice it would be {own.total_untied:,}")
    active = own.active
    if active.both != own.total:
        notes.append(
            f"active a token: {active.both:,} with embedding and head, {active.head_only:,} with the head "
            f"only, {active.neither:,} with neither"
        )
    return Table("How many parameters?", _columns("part", "parameters", "share"), tuple(rows), tuple(notes))


def _cache(price: Price) -> Table:
    own = price.kv_cache
    rows = [
        ("a token, from empty", units.exact(own.bytes_per_token), units.gib(own.bytes_per_token)),
        (
            f"one more after {units.tokens(price.context)}",
            units.exact(own.marginal_bytes_per_token),
            units.gib(own.marginal_bytes_per_token),
        ),
    ]
    if own.cross_bytes:
        rows.append((f"the memory of {price.source_tokens:,}", *_both(own.cross_bytes)))
    if own.state_bytes:
        rows.append(("running states", *_both(own.state_bytes)))
    rows.append((f"all of it, {_sequences(price)}", *_both(own.bytes)))
    notes = [*own.product]
    if own.expanded_bytes_per_token:
        notes.append(f"cached as expanded heads it would be {own.expanded_bytes_per_token:,} B a token")
    question = f"What must the cache hold, in {price.kv_dtype}?"
    return Table(question, _columns("cache", "bytes", "rounded"), tuple(rows), tuple(notes))


def _both(n: int) -> tuple[str, str]:
    return units.exact(n), units.gib(n)


def _sequences(price: Price) -> str:
    context = f"{units.tokens(price.context)} tokens"
    return context if price.batch == 1 else f"{price.batch:,} x {context}"


def _contexts(price: Price) -> Table:
    rows = tuple(
        (
            units.tokens(row.context),
            units.gib(row.kv_cache_bytes),
            units.gib(row.score_bytes_per_layer),
            units.gib(row.decode_bytes_per_step),
            f"{100 * row.cache_share_of_decode:.1f}%",
        )
        for row in price.by_context
    )
    columns = _columns("context", "cache", "naive scores a layer", "decode moves", "cache in that")
    return Table("How does it grow with context?", columns, rows)


def _engines(price: Price) -> Table:
    """Every engine's bytes; its rule where it holds more than the ideal, or less certain than measured."""
    ideal, plain = price.kv_cache.bytes, []
    without: dict[str, list[str]] = {}
    rows: list[tuple[str, ...]] = [("ideal", *reversed(_both(ideal)), "1.00", "derived")]
    notes = []
    for engine in price.engines:
        if not engine.applies:
            if not engine.reason.startswith(BESIDE_THE_POINT):
                without.setdefault(engine.reason, []).append(engine.engine)
            continue
        name, held = f"{engine.engine} {engine.version}", engine.bytes
        source = engine.provenance.split(" ")[0]
        rows.append((name, *reversed(_both(held)), f"{held / ideal:.2f}" if ideal else "", source))
        if held == ideal:
            plain.append(engine.engine)
        else:
            notes.append(f"{name}: {engine.rule}")
    if plain:
        notes.append(
            f"no more than the ideal here: {', '.join(plain)}. Every engine's rule and source: docs/engines.md and the JSON"
        )
    notes += [f"left out, {', '.join(names)}: {reason}" for reason, names in without.items()]
    columns = (*_columns("engine", "rounded", "bytes", "x ideal"), Column("figure"))
    return Table("What do engines really hold?", columns, tuple(rows), tuple(notes))


def _steps(price: Price) -> Table:
    steps: list[tuple[str, Prefill | Decode | Training]] = [
        ("prefill", price.prefill),
        ("training step", price.training),
    ]
    if price.decode.bytes_per_step:
        steps.insert(1, ("one decode step", price.decode))
    lines = (
        ("MACs, visible pairs", "macs_exact", units.macs),
        ("FLOPs, visible pairs (= 2 MACs)", "flops_exact", units.flops),
        ("FLOPs, every pair (dense)", "flops_dense", units.flops),
        ("  of it QK^T and PV, MACs exact", "score_and_mix_macs_exact", units.macs),
        ("  of it projections, MACs", "projection_macs", units.macs),
        ("  of it MLP, MACs", "mlp_macs", units.macs),
        ("  of it head, MACs", "head_macs", units.macs),
    )
    rows = [
        (label, *(show(getattr(step, key)) for _, step in steps))
        for label, key, show in lines
        if any(getattr(step, key) for _, step in steps)
    ]
    rows.append(("bytes moved at least", *(_moved(step) for _, step in steps)))
    return Table(
        f"What does a step take, {_sequences(price)}?",
        _columns("", *(name for name, _ in steps)),
        tuple(rows),
        _step_notes(price),
    )


def _moved(step: Prefill | Decode | Training) -> str:
    if isinstance(step, Training):
        return "-"
    return units.gib(step.bytes if isinstance(step, Prefill) else step.bytes_per_step)


def _step_notes(price: Price) -> tuple[str, ...]:
    decode, training = price.decode, price.training
    notes = [f"naive scores: {units.bytes_both(price.score_bytes_per_layer)} a layer, one {price.score_dtype} copy"]
    if decode.bytes_per_step:
        cache = decode.cache_read_bytes + decode.cache_write_bytes + decode.state_bytes
        notes.append(
            f"decode moves {units.exact(decode.bytes_per_step)} a step = {decode.weight_bytes:,} weights + {cache:,} "
            f"cache; {decode.flops_per_byte:.2f} FLOPs a byte ({decode.core_flops_per_byte:.2f} in attention alone)"
        )
    if decode.cache_outweighs_read_weights_at_tokens:
        notes.append(
            f"cache outweighs attention's weights from {decode.cache_outweighs_attention_weights_at_tokens:,} "
            f"cached tokens, all weights read from {decode.cache_outweighs_read_weights_at_tokens:,}"
        )
    notes.append(
        f"training keeps {units.gib(training.activation_bytes_tiled)} of activations with tiled attention, "
        f"{units.gib(training.activation_bytes_naive)} with scores held; MACs are 3 x forward, none recomputed"
    )
    return tuple(notes)


def _times(own: HardwareTimes) -> Table:
    rows = []
    for name, step in (("prefill", own.prefill), ("decode", own.decode), ("training", own.training)):
        if step is not None:
            span = f"{units.duration(step.low_seconds)} to {units.duration(step.high_seconds)}"
            rows.append((name, span, step.bound_by, step.arithmetic))
    notes = (
        f"low: derived from {own.provenance} figures ({own.source})"
        + ("; cannot be beaten" if own.provenance == "published" else "; readings vary on a shared machine"),
        f"high: prior, not measured for this model: {_percent(own.prefill)} of peak in prefill and training"
        + (f", {_percent(own.decode)} of the bound in decode" if own.decode is not None else ""),
    )
    title = f"How long on {own.title}?"
    return Table(title, _columns("step", "time", "bound by", "arithmetic"), tuple(rows), notes)


def _percent(step: StepTime) -> str:
    return f"{100 * step.efficiency_prior:.0f}%"


def _ranks(price: Price, own: Rank) -> Table:
    rows = (
        ("weights", *_both(own.weight_bytes_per_rank)),
        (f"cache, {_sequences(price)}", *_both(own.kv_cache_bytes_per_rank)),
        ("cache a token", *_both(own.kv_bytes_per_token_per_rank)),
    )
    notes = []
    if own.kv_heads_replicated:
        notes.append(f"{own.ranks} ranks are more than the KV heads: each head is kept on several ranks")
    if own.latents_on_every_rank:
        notes.append("MLA's latents are kept whole on every rank")
    return Table(
        f"What does one of {own.ranks} ranks hold?", _columns("a rank", "bytes", "rounded"), rows, tuple(notes)
    )


def _memory(own: Fit, ranks: int) -> Table:
    any_length = "any"
    context, batch = own.longest_context, own.largest_batch
    rows = (
        ("needed: weights and ideal cache", *_both(own.needed_bytes)),
        ("budget", *_both(own.budget_bytes)),
        ("longest context", any_length if context is None else f"{context:,} tokens", ""),
        ("largest batch", any_length if batch is None else f"{batch:,} sequences", ""),
    )
    verdict = "it fits" if own.fits else "it does not fit"
    notes = [f"{verdict}; left out: {own.leaves_out}"]
    if own.change:
        notes.append(f"the one change that would make it fit: {own.change}")
    question = "Does it fit?" if ranks == 1 else f"Does one of {ranks} ranks fit?"
    return Table(question, _columns("memory", "bytes", "rounded"), rows, tuple(notes))


def _what_if(price: Price) -> Table:
    base = price.kv_cache.bytes
    rows = [_layout("as it is", price, base)]
    rows += [_layout(item.name or "", item, base) for item in price.what_if]
    columns = _columns("layout", "cache", "x", "a token", "attention weights", "decode moves")
    note = "prices of other models: a conversion changes what the model computes, and its loss must be measured"
    return Table(f"What if it had other heads, {_sequences(price)}?", columns, tuple(rows), (note,))


def _layout(name: str, price: Price, base: int) -> tuple[str, ...]:
    held = price.kv_cache.bytes
    return (
        name,
        units.gib(held),
        f"{held / base:.3g}" if base else "-",
        units.exact(price.kv_cache.bytes_per_token),
        units.count(price.parameters.attention),
        units.gib(price.decode.bytes_per_step),
    )
