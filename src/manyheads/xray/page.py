"""The page of an x-ray: what stands first on it, and its plot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from manyheads.cost.tables import title
from manyheads.heads.left_out import NotMeasured
from manyheads.report import units
from manyheads.report.html import Fact, render_html
from manyheads.report.jsonform import as_json
from manyheads.report.plot import Plot, Series
from manyheads.report.value import Report
from manyheads.xray.heads_widgets import widgets
from manyheads.xray.record import CacheCurve, Shape, XRay
from manyheads.xray.tables import page_tables, verdict

__all__ = ["LEAD", "page"]

_SHORT = {
    "transformers DynamicCache": "DynamicCache",
    "transformers StaticCache": "StaticCache",
    "transformers DynamicCache, MLA expanded": "MLA expanded",
    "vLLM without its hybrid cache manager": "vLLM, all full",
}
_SINK = "first token"
LEAD = "Where does each head look, and what does it do?"
_AFTER = "What do engines really hold?"


def page(found: XRay, *, said: Callable[[Report], Report] = lambda made: made) -> str:
    """The x-ray as one HTML file, which leads with its heads. `said`: the same report in other words, the command line's."""
    start, _, rest = verdict(found).partition(":")
    judged = Fact(start[0].upper() + start[1:] + ":", rest.strip(), _of_heads(found), "good" if found.agrees else "bad")
    shown = Report(title(found.cost), page_tables(found), as_json(found), found.notes, found.next_command)
    shown_heads = widgets(found.heads) if found.heads is not None else ()
    made = f"Made by manyheads {found.versions['manyheads']} on {found.date[:10]}"
    return render_html(
        said(shown), verdict=judged, facts=_facts(found), plots=_plots(found.cache_curve),
        widgets=shown_heads, lead=LEAD if shown_heads else "", made=made,
    )  # fmt: skip


def _facts(found: XRay) -> tuple[Fact, ...]:
    parameters, text, cache = found.parameters, found.text, found.cost.kv_cache
    made = [
        Fact(
            "Parameters", units.count(parameters.loaded),
            "as predicted" if parameters.equal else f"predicted {units.count(parameters.predicted)}",
            "" if parameters.equal else "bad",
        ),
        Fact("Attention", _heads(found.shape), f"{found.shape.layers} layers"),
    ]  # fmt: skip
    if cache.bytes_per_token:
        made.append(Fact("Cache a token", units.gib(cache.bytes_per_token), f"in {found.cost.kv_dtype}"))
        made.append(Fact("Cache at its context", units.gib(cache.bytes), f"{units.tokens(found.cost.context)} tokens"))
    if text.scores and text.shuffled and math.isfinite(text.scores.perplexity):
        control = text.shuffled.perplexity
        words = f"{control:,.0f} when shuffled" if math.isfinite(control) else ""
        made.append(Fact("Perplexity", f"{text.scores.perplexity:,.1f}", words))
    labels = _labels(found)
    if labels:
        made.append(Fact("Heads with a role", f"{_with_role(labels):,} of {len(labels):,}", f"{_SINK} not counted"))
    return tuple(made)


def _labels(found: XRay) -> list[str]:
    """What each head does, "" for nothing; [] where that was not looked into."""
    own = found.heads.roles if found.heads is not None else NotMeasured("")
    return [] if isinstance(own, NotMeasured) else list(own.labels.values())


def _with_role(labels: Sequence[str]) -> int:
    return sum(label not in ("", _SINK) for label in labels)


def _of_heads(found: XRay) -> str:
    """What was found of heads, in a sentence; "" where nothing was."""
    said, labels = [], _labels(found)
    if labels:
        said.append(f"{_with_role(labels):,} of {len(labels):,} have a role beside the sink ({_SINK})")
    own = found.heads.removable if found.heads is not None else None
    if own is not None and own.texts:
        counts = sorted(row.heads for row in own.texts)
        between = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
        said.append(f"{between} of {own.texts[0].total:,} can go together for {own.share:.0%} more loss")
    return f"Heads: {'; '.join(said)}" if said else ""


def _heads(shape: Shape) -> str:
    kv = shape.num_key_value_heads
    heads = f"{shape.num_attention_heads}" if kv is None else f"{shape.num_attention_heads} / {kv}"
    return f"{heads} x {shape.head_dim}"


def _plots(curve: CacheCurve) -> tuple[Plot, ...]:
    if not curve.series:
        return ()
    series = tuple(Series(each.name, _short(each.name), each.bytes) for each in curve.series)
    first, last = curve.contexts[0], curve.contexts[-1]
    ideal = curve.series[0].bytes
    described = (
        f"Bytes of the cache of one sequence in {curve.kv_dtype} against its length, both on logarithmic axes: ideally "
        f"{units.gib(ideal[0])} at {first:,} tokens and {units.gib(ideal[-1])} at {last:,}"
    )
    plot = Plot(
        "Cache of one sequence, by context", described, "tokens", f"In {curve.kv_dtype}, both axes logarithmic",
        curve.contexts, series, after=_AFTER,
    )  # fmt: skip
    return (plot,)


def _short(name: str) -> str:
    plain = name.rpartition(" ")[0] or name
    return _SHORT.get(plain, plain if len(plain) <= 14 else f"{plain[:13]}…")
