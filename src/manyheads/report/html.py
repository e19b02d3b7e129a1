"""A report as one HTML file: no address outside itself, readable without scripts, on a phone, in the dark and on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from manyheads.report.jsonform import encode
from manyheads.report.plain import visible
from manyheads.report.plot import Drawing, Plot, draw

if TYPE_CHECKING:
    from jinja2 import Template

    from manyheads.report.value import Report

__all__ = ["GENERATOR", "Fact", "generator", "render_html"]


def generator(verb: str) -> str:
    """What tells a page of ours from anybody else's; it stands within the first 500 characters."""
    return f'<meta name="generator" content="manyheads {verb}">'


GENERATOR = generator("xray")

_LONG_NOTES = 280


@dataclass(frozen=True)
class Fact:
    """A figure worth reading first: what it is, the figure, and a few words on it. `tone`: "", "good" or "bad"."""

    label: str
    figure: str
    words: str = ""
    tone: str = ""


def render_html(
    report: Report, *, verdict: Fact | None = None, facts: Sequence[Fact] = (), plots: Sequence[Plot] = (), made: str = "",
    verb: str = "xray", brand: str = "x-ray",
) -> str:  # fmt: skip
    """`report` as the text of an HTML page.

    `verdict`: one sentence at the top; `facts`: figures below it; `plots`: drawn after the tables they name; `made`: with
    what and when. Everything in the report is taken for untrusted text and escaped; its `data` is embedded as JSON.
    Needs jinja2 (extra `models`).
    """
    drawings: dict[str, list[Drawing]] = {}
    for plot in plots:
        drawn = draw(plot)
        if drawn is not None:
            drawings.setdefault(plot.after, []).append(drawn)
    page: str = _template().render(
        report=report,
        generator=generator(verb),
        brand=brand,
        verdict=verdict,
        facts=facts,
        drawings=drawings,
        made=made,
        json=_embedded(report.data),
        long_notes=_LONG_NOTES,
    )
    return page


def _embedded(data: Mapping[str, Any]) -> str:
    """The JSON so that no text in it can end the element it stands in."""
    return encode(data).replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    folder = resources.files("manyheads.report").joinpath("templates")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["shown"] = lambda text: escape(visible(str(text), keep_lines=True))
    # Trusted: written by us, not by whoever made a model.
    environment.globals["style"] = Markup(folder.joinpath("page.css").read_text("utf-8"))  # noqa: S704
    return environment.from_string(folder.joinpath("page.html").read_text("utf-8"))
