"""What the page of an x-ray shows of heads beside the tables: grids of them, and the map of each to look into."""

from __future__ import annotations

import math

from manyheads.heads.address import format_head, parse_head
from manyheads.heads.effects import DRIFT
from manyheads.heads.left_out import NotMeasured
from manyheads.heads.page.widgets import HeadNote, grid_widget, maps_widget
from manyheads.heads.roles.tables import SHOWN_FIRST, two
from manyheads.report.html import Widget
from manyheads.xray.heads_record import HeadImportance, HeadsFound, ImportanceFound, MapsFound

__all__ = ["grids", "widgets"]


def widgets(found: HeadsFound) -> tuple[Widget, ...]:
    """The grids, and below them the maps that the cells open."""
    made, maps = grids(found), found.maps
    if made and isinstance(maps, MapsFound) and maps.pictures is not None:
        return (*made, maps_widget(maps.pictures, maps.texts, _notes(found)))
    return made


def grids(found: HeadsFound) -> tuple[Widget, ...]:
    """The heads coloured by role and by importance, as far as these are known; () where no head is known of."""
    notes, weights = _notes(found), found.importance
    if not notes:
        return ()
    roles = not isinstance(found.roles, NotMeasured)
    measure = "" if isinstance(weights, NotMeasured) else _measure(weights)
    return (grid_widget(notes, roles=roles, importance=measure),)


def _measure(own: ImportanceFound) -> str:
    """What the colours of the heads mean."""
    what = "How far the output drifts" if own.objective == DRIFT else "What the loss rises by"
    where = "" if own.first_position.reason else " at all positions but the first"
    return f"{what}, {own.unit}, when the head gives its mean instead{where}"


def _notes(found: HeadsFound) -> list[HeadNote]:
    """A note of every head that is known of, the one to open first at the front: the clearest of the rarest role."""
    weights, maps = found.importance, found.maps
    labels = {} if isinstance(found.roles, NotMeasured) else found.roles.labels
    roles = () if isinstance(found.roles, NotMeasured) else found.roles.roles
    scores = {} if isinstance(weights, NotMeasured) else {row.head: row for row in weights.heads}
    told = {
        (one.role, row.head): f"{one.role} {two(row.score)}" + (f", control {row.control:.2f}" if not math.isnan(row.control) else "")
        for one in roles
        for row in one.heads
    }  # fmt: skip
    notes = []
    for address in dict.fromkeys([*scores, *labels]):
        label, row = labels.get(address, ""), scores.get(address)
        words = [told.get((label, address), label)] if label else []
        if row is not None and not isinstance(weights, NotMeasured):
            words += _cost(row, weights)
        importance = row.score if row is not None and not math.isnan(row.score) else None
        apart = row is not None and row.told_apart
        notes.append(HeadNote(parse_head(address), label, "; ".join(words), importance, apart=apart))
    if not notes and isinstance(maps, MapsFound) and maps.pictures is not None:
        notes = [HeadNote(head) for layer in maps.pictures.layers for _, head in layer.addresses()]
    clearest = {one.role: one.heads[0].head for one in roles if one.heads}
    first = next((clearest[role] for role in SHOWN_FIRST if role in clearest), "")
    return sorted(notes, key=lambda note: format_head(note.head) != first)


def _cost(row: HeadImportance, weights: ImportanceFound) -> list[str]:
    """What is known of what a head costs, in words."""
    if math.isnan(row.score):
        return []
    what = "drift" if weights.objective == DRIFT else "loss"
    said = f"{what} {row.score:+.2g} {weights.unit} without it"
    if row.loss_without is None:
        return [f"{said}, to first order"]
    if row.told_apart:
        return [f"{said}, 95% {row.loss_low:+.2g} to {row.loss_high:+.2g}"]
    return [f"{said}, not told apart from 0"]
