"""The page of `manyheads heads`: its tables, and the map of each head on the text that was read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from manyheads.heads.address import format_head, parse_head
from manyheads.heads.alignment import Frame
from manyheads.heads.map_text import MAP_TOKENS, map_text
from manyheads.heads.maps import HeadMaps, fit, head_maps
from manyheads.heads.maps_page import HeadNote, grid_widget, maps_widget
from manyheads.heads.overview_tables import MEANS
from manyheads.heads.role_tables import SHOWN_FIRST
from manyheads.heads.watching import longest_text
from manyheads.models.load import Loaded
from manyheads.report.html import Widget, render_html
from manyheads.report.value import Column, Report, Table

__all__ = ["Pictures"]

READ = "What was read?"


class Pictures:
    """Takes the maps while the model is there (`take`, as `look` of `heads.overview.overview`), and makes the page later."""

    def __init__(self) -> None:
        self._maps: HeadMaps | None = None
        self._texts: dict[str, list[str]] = {}

    def take(self, loaded: Loaded, told: Mapping[str, Any], text: str, ids: Sequence[int], around: Frame) -> None:
        """The maps of all heads on the first tokens of the text."""
        most = longest_text(loaded.model, MAP_TOKENS)
        inputs, self._texts = map_text(loaded, text, ids, around=around, most=most)
        two_sided = any(head["mass"].get("next") is not None for head in told["heads"])
        self._maps = head_maps(loaded.model, inputs, shape=fit(len(told["heads"]), two_sided=two_sided))

    def page(self, report: Report) -> str:
        """The report as an HTML page: what was read, the heads to look into, then its tables, the long one last."""
        told: Any = report.data
        first, *rest = report.tables
        tables = (_read(told), first, *rest) if told["one"] is not None else (_read(told), *rest, first)
        shown = Report(report.title, tables, report.data, report.notes, report.next_command)
        return render_html(shown, widgets=self._widgets(told, after=READ), verb="heads", brand="heads")

    def _widgets(self, told: Mapping[str, Any], *, after: str) -> tuple[Widget, ...]:
        notes, own = _notes(told), told["importance"]
        measure = f"{MEANS[own['method']].capitalize()}, {own['unit']}" if own is not None else ""
        made = [grid_widget(notes, after=after, roles=told["roles"] is not None, importance=measure)]
        if self._maps is not None:
            made.append(maps_widget(self._maps, self._texts, notes, after=after))
        return tuple(made)


def _read(told: Mapping[str, Any]) -> Table:
    text = told["text"]
    rows = (
        ("text", text["name"]), ("tokens", f"{text['tokens']:,}"), ("around them", text["around"]),
        ("heads", f"{len(told['heads']):,}"), ("run in", f"{told['dtype']} on {told['device']}"),
    )  # fmt: skip
    return Table(READ, (Column("what"), Column("value")), rows)


def _notes(told: Mapping[str, Any]) -> list[HeadNote]:
    """What is known of each head; the one that was asked for first, else one that has a role which few have."""
    own = told["importance"]
    exact = own is not None and own["method"] != "first-order"
    kind = "" if own is None else "loss without it" if exact else "first order"
    notes = []
    for row in told["heads"]:
        words = f"{kind} {row['importance']:.2g} {own['unit']}" if row["importance"] is not None else ""
        said = "; ".join(part for part in (row["role"], words) if part)
        notes.append(HeadNote(parse_head(row["head"]), row["role"], said, row["importance"], exact=exact))
    if told["one"] is not None:
        return sorted(notes, key=lambda note: format_head(note.head) != told["one"]["head"])
    return sorted(
        notes, key=lambda note: SHOWN_FIRST.index(note.role) if note.role in SHOWN_FIRST else len(SHOWN_FIRST)
    )
