"""A report as one HTML file: no address outside itself, readable without scripts, on a phone, in the dark and on paper."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from manyheads.quoting import visible
from manyheads.report.jsonform import encode
from manyheads.report.plot import Drawing, Plot, draw

if TYPE_CHECKING:
    from jinja2 import Environment, Template

    from manyheads.report.value import Report, Table

__all__ = ["GENERATOR", "Fact", "Templates", "Widget", "embedded", "generator", "render_html"]


def generator(verb: str) -> str:
    """What tells a page of ours from anybody else's; it stands within the first 500 characters."""
    return f'<meta name="generator" content="manyheads {verb}">'


GENERATOR = generator("xray")

_LONG_TABLE = 8
"""Rows from which on a table can be sorted, as tables.js has it."""
_OPEN_NOTES = 3
_MOST_COLUMNS, _MOST_ROWS = 6, 48
"""Of a table that half the width of a wide screen has room for."""
_LONG_NOTE, _SHORT_NOTE = 280, 140


@dataclass(frozen=True)
class Fact:
    """A figure worth reading first: what it is, the figure, and a few words on it. `tone`: "", "good" or "bad".

    As a verdict, `words` are a line of their own below it.
    """

    label: str
    figure: str
    words: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Templates:
    """What pages are made of: the files in the folder `templates` of a package."""

    package: str

    def text(self, name: str) -> str:
        """A file as it is: a style, a script."""
        return _file(self.package, name)

    def fill(self, name: str, values: Mapping[str, object]) -> str:
        """The template `name` filled with `values`, every one of them escaped."""
        filled: str = _template(self.package, name).render(values)
        return filled


_OWN = Templates("manyheads.report")


@dataclass(frozen=True)
class Widget:
    """Something to look into that is no table and no plot, trusted as it is: make `markup` by `Templates.fill`, which escapes.

    `style` and `scripts` are texts, each added once to the page in this order. `after`: the question of the table that it
    follows, in whose section it stands.
    """

    markup: str
    after: str = ""
    style: str = ""
    scripts: tuple[str, ...] = ()


def render_html(
    report: Report, *, verdict: Fact | None = None, facts: Sequence[Fact] = (), plots: Sequence[Plot] = (),
    widgets: Sequence[Widget] = (), lead: str = "", made: str = "", verb: str = "xray", brand: str = "x-ray",
) -> str:  # fmt: skip
    """`report` as the text of an HTML page.

    `verdict`: one sentence at the top; `facts`: figures below it; `plots` and `widgets`: after the tables they name, widgets that
    name none in front of all tables, in a section that `lead` heads. Wide screens show the tables in two columns, those with widgets,
    with many columns or many rows over both;
    `made`: with what and when. Everything in the report is taken for untrusted text and escaped; its `data` is embedded
    as JSON. No script runs but ours, for long tables and for the widgets, which the page's policy names by their hash. Needs jinja2 (extra
    `models`).
    """

    def wide(table: Table) -> bool:
        return table.question in beside or len(table.columns) > _MOST_COLUMNS or len(table.rows) > _MOST_ROWS

    drawings: dict[str, list[Drawing]] = {}
    for plot in plots:
        drawn = draw(plot)
        if drawn is not None:
            drawings.setdefault(plot.after, []).append(drawn)
    beside: dict[str, list[str]] = {}
    for widget in widgets:
        beside.setdefault(widget.after, []).append(widget.markup)
    scripts = list(dict.fromkeys(_scripts(report, widgets)))
    return _OWN.fill("page.html", {
        "report": report, "generator": generator(verb), "brand": brand, "verdict": verdict, "facts": facts, "lead": lead,
        "drawings": drawings, "widgets": beside, "scripts": scripts, "script_hashes": [_hash(script) for script in scripts],
        "styles": list(dict.fromkeys(widget.style for widget in widgets if widget.style)), "made": made,
        "json": _shielded(encode(report.data, compact=True)), "parted": _parted, "wide": wide,
    })  # fmt: skip


def _scripts(report: Report, widgets: Sequence[Widget]) -> Iterator[str]:
    if any(len(table.rows) >= _LONG_TABLE for table in report.tables):
        yield _OWN.text("tables.js")
    for widget in widgets:
        yield from widget.scripts


def embedded(data: object) -> str:
    """`data` as compact JSON in ASCII, for a script element: no text in it can end the element it stands in."""
    return _shielded(json.dumps(data, separators=(",", ":"), allow_nan=False))


def _parted(notes: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The notes that stand open under a table, and those behind a fold: a picture of a table shows its first notes too.

    The first three are open, up to the first long one; a single short one that is left is not worth a fold.
    """
    most = next((n for n, note in enumerate(notes[:_OPEN_NOTES]) if len(note) > _LONG_NOTE), _OPEN_NOTES)
    if len(" ".join(notes[most:])) <= _SHORT_NOTE:
        most = len(notes)
    return notes[:most], notes[most:]


def _shielded(text: str) -> str:
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@cache
def _file(package: str, name: str) -> str:
    return resources.files(package).joinpath("templates", name).read_text("utf-8")


@cache
def _template(package: str, name: str) -> Template:
    return _environment().from_string(_file(package, name))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup, escape

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["shown"] = lambda text: escape(visible(str(text), keep_lines=True))
    # Trusted: written by us, not by whoever made a model.
    environment.globals["style"] = Markup(_OWN.text("page.css"))  # noqa: S704
    return environment
