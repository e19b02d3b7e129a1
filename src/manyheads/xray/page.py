"""The page of an x-ray: what stands first on it, and its plot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from manyheads.report import units
from manyheads.report.html import Fact, Widget, render_html
from manyheads.report.plot import Plot, Series
from manyheads.report.value import Report
from manyheads.xray.tables import verdict

__all__ = ["page"]

_SHORT = {
    "transformers DynamicCache": "DynamicCache",
    "transformers StaticCache": "StaticCache",
    "transformers DynamicCache, MLA expanded": "MLA expanded",
    "vLLM without its hybrid cache manager": "vLLM, all full",
}
_SINK = "first token"
_AFTER = "What do engines really hold?"


def page(report: Report, *, widgets: Sequence[Widget] = ()) -> str:
    """The x-ray `report` as one HTML file, with what sections have to show beside its tables."""
    data: Any = report.data
    sentence = verdict(data)
    start, _, rest = sentence.partition(":")
    judged = Fact(
        start[0].upper() + start[1:] + ":", rest.strip(), _of_heads(data), "good" if data["agrees"] else "bad"
    )
    shown = Report(report.title, report.tables, report.data, report.notes[1:], report.next_command)
    made = f"Made by manyheads {data['versions']['manyheads']} on {data['date'][:10]}"
    return render_html(shown, verdict=judged, facts=_facts(data), plots=_plots(data), widgets=widgets, made=made)


def _facts(data: Any) -> tuple[Fact, ...]:
    parameters, text, cache = data["parameters"], data["text"], data["cost"]["kv_cache"]
    made = [
        Fact(
            "Parameters", units.count(parameters["loaded"]),
            "as predicted" if parameters["equal"] else f"predicted {units.count(parameters['predicted'])}",
            "" if parameters["equal"] else "bad",
        ),
        Fact("Attention", _heads(data["shape"]), f"{data['shape']['layers']} layers"),
    ]  # fmt: skip
    if cache["bytes_per_token"]:
        made.append(Fact("Cache a token", units.gib(cache["bytes_per_token"]), f"in {data['cost']['kv_dtype']}"))
        made.append(
            Fact("Cache at its context", units.gib(cache["bytes"]), f"{units.tokens(data['cost']['context'])} tokens")
        )
    if text["scores"] and text["scores"]["perplexity"] is not None:
        control = text["shuffled"]["perplexity"]
        words = f"{control:,.0f} when shuffled" if control is not None else ""
        made.append(Fact("Perplexity", f"{text['scores']['perplexity']:,.1f}", words))
    labels = _labels(data)
    if labels:
        made.append(Fact("Heads with a role", f"{_with_role(labels):,} of {len(labels):,}", f"{_SINK} not counted"))
    return tuple(made)


def _labels(data: Any) -> list[str]:
    """What each head does, "" for nothing; [] where that was not looked into."""
    own = data.get("heads", {}).get("roles", {"reason": "not asked"})
    return [] if own["reason"] else list(own["labels"].values())


def _with_role(labels: Sequence[str]) -> int:
    return sum(label not in ("", _SINK) for label in labels)


def _of_heads(data: Any) -> str:
    """What was found of heads, in a sentence; "" where nothing was."""
    said, labels = [], _labels(data)
    if labels:
        said.append(f"{_with_role(labels):,} of {len(labels):,} have a role beside the sink ({_SINK})")
    own = data.get("heads", {}).get("removable", {"reason": "not asked"})
    if not own["reason"] and own["texts"]:
        counts = sorted(row["heads"] for row in own["texts"])
        between = " to ".join(f"{count:,}" for count in dict.fromkeys((counts[0], counts[-1])))
        said.append(f"{between} of {own['texts'][0]['total']:,} can go together for {own['share']:.0%} more loss")
    return f"Heads: {'; '.join(said)}" if said else ""


def _heads(shape: Any) -> str:
    kv = shape["num_key_value_heads"]
    heads = f"{shape['num_attention_heads']}" if kv is None else f"{shape['num_attention_heads']} / {kv}"
    return f"{heads} x {shape['head_dim']}"


def _plots(data: Any) -> tuple[Plot, ...]:
    curve = data["cache_curve"]
    if not curve["series"]:
        return ()
    series = tuple(Series(each["name"], _short(each["name"]), tuple(each["bytes"])) for each in curve["series"])
    first, last = curve["contexts"][0], curve["contexts"][-1]
    ideal = curve["series"][0]["bytes"]
    described = (
        f"Bytes of the cache of one sequence in {curve['kv_dtype']} against its length, both on logarithmic axes: ideally "
        f"{units.gib(ideal[0])} at {first:,} tokens and {units.gib(ideal[-1])} at {last:,}"
    )
    plot = Plot(
        "Cache of one sequence, by context", described, "tokens", f"In {curve['kv_dtype']}, both axes logarithmic",
        tuple(curve["contexts"]), series, after=_AFTER,
    )  # fmt: skip
    return (plot,)


def _short(name: str) -> str:
    plain = name.rpartition(" ")[0] or name
    return _SHORT.get(plain, plain if len(plain) <= 14 else f"{plain[:13]}…")
