"""The page of `manyheads heads`: its tables, and the map of each head on the text that was read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite, nan

from manyheads.errors import ManyheadsError
from manyheads.heads.address import format_head, parse_head
from manyheads.heads.alignment import Frame
from manyheads.heads.batches import longest_text
from manyheads.heads.overview.record import HeadsOverview
from manyheads.heads.overview.tables import MEANS, report
from manyheads.heads.page.map_text import MAP_TOKENS, map_text
from manyheads.heads.page.maps import HeadMaps, fit, head_maps
from manyheads.heads.page.widgets import HeadNote, grid_widget, maps_widget
from manyheads.heads.roles.tables import SHOWN_FIRST, role_name, two
from manyheads.models.load.model import Loaded
from manyheads.report.html import Widget, embedded, render_html
from manyheads.report.value import Column, Report, Table

__all__ = ["Pictures"]

READ = "What was read?"


class Pictures:
    """Takes the maps while the model is there (`take`, as `look` of `heads.overview.run.overview`), and makes the page later."""

    def __init__(self) -> None:
        self._maps: HeadMaps | None = None
        self._texts: dict[str, list[str]] = {}
        self._without = ""

    def take(self, loaded: Loaded, told: HeadsOverview, text: str, ids: Sequence[int], around: Frame) -> None:
        """The maps of all heads on the first tokens of the text."""
        most = longest_text(loaded.model, MAP_TOKENS)
        inputs, self._texts = map_text(loaded, text, ids, around=around, most=most)
        two_sided = any(isfinite(head.mass.get("next", nan)) for head in told.heads)
        beside = len(self.page(told).encode()) + len(embedded(self._texts))
        try:
            shape = fit(len(told.heads), two_sided=two_sided, beside_bytes=beside)
        except ManyheadsError as error:  # the tables of so many heads are still worth a page
            self._without = str(error)
            return
        self._maps = head_maps(loaded.model, inputs, shape=shape)

    def page(self, told: HeadsOverview, *, said: Callable[[Report], Report] = lambda made: made) -> str:
        """An HTML page: what was read, the heads to look into, then the tables, the long one last. `said`: the same report in
        other words, the command line's."""
        made = said(report(told))
        first, *rest = made.tables
        tables = (_read(told), first, *rest) if told.one is not None else (_read(told), *rest, first)
        notes = (*made.notes, f"no maps of where heads look: {self._without}") if self._without else made.notes
        shown = Report(made.title, tables, made.data, notes, made.next_command)
        return render_html(shown, widgets=self._widgets(told, after=READ), verb="heads", brand="heads")

    def _widgets(self, told: HeadsOverview, *, after: str) -> tuple[Widget, ...]:
        notes, own = _notes(told), told.importance
        measure = f"{MEANS[own.method].capitalize()}, {own.unit}" if own is not None else ""
        made = [grid_widget(notes, after=after, roles=told.roles is not None, importance=measure)]
        if self._maps is not None:
            made.append(maps_widget(self._maps, self._texts, notes, after=after))
        return tuple(made)


def _read(told: HeadsOverview) -> Table:
    text = told.text
    rows = (
        ("text", text.name), ("tokens", f"{text.tokens:,}"), ("around them", text.around),
        ("heads", f"{len(told.heads):,}"), ("run in", f"{told.dtype} on {told.device}"),
    )  # fmt: skip
    return Table(READ, (Column("what"), Column("value")), rows)


def _notes(told: HeadsOverview) -> list[HeadNote]:
    """What is known of each head; the one that was asked for first, else one that has a role which few have."""
    own = told.importance
    exact = own is not None and own.method != "first-order"
    kind = "" if own is None else "loss without it" if exact else "first-order importance"
    evidence = _evidence(told)
    notes = []
    for row in told.heads:
        words = [evidence.get((row.head, row.role), row.role)] if row.role else []
        words += [f"{kind} {row.importance:.2g} {own.unit}"] if own is not None and isfinite(row.importance) else []
        words += [f"mean distance {row.distance:.3g} tokens"] if isfinite(row.distance) else []
        words += [f"entropy {row.entropy:.2f} nats"] if isfinite(row.entropy) else []
        notes.append(
            HeadNote(
                parse_head(row.head), row.role, "; ".join(words), row.importance if isfinite(row.importance) else None
            )
        )
    if told.one is not None:
        first = told.one.head
        return sorted(notes, key=lambda note: format_head(note.head) != first)
    return sorted(
        notes, key=lambda note: SHOWN_FIRST.index(note.role) if note.role in SHOWN_FIRST else len(SHOWN_FIRST)
    )


def _evidence(told: HeadsOverview) -> dict[tuple[str, str], str]:
    """By head and role: the score, its interval and its control, in words."""
    return {
        (row.head, one.role): f"{role_name(one.role, row.detail)} {two(row.score)} "
        f"(95%: {two(row.low)} to {two(row.high)}; control {two(row.null)})"
        for one in (told.roles.roles if told.roles is not None else ())
        for row in one.heads
        if row.verdict == "holds"
    }
