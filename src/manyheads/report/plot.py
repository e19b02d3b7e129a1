"""Lines on logarithmic axes as geometry: what a template needs to draw them as SVG. Text and colour are the page's."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from manyheads.report import units

__all__ = ["Drawing", "Label", "Line", "Plot", "Series", "Tick", "draw"]

WIDTH, HEIGHT = 640, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 92, 150, 14, 62
_LABEL_GAP = 24
_MOST_TICKS = 7


@dataclass(frozen=True)
class Series:
    """A line: its full name, a short one to stand at its end, and a value for each x, all positive (a share may be 0)."""

    name: str
    short: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Plot:
    """Bytes or seconds against tokens, both logarithmic, or shares (0 to 1) against a count from 0, both linear.

    `after`: the question of the table that it follows on the page.
    """

    title: str
    description: str
    x_label: str
    y_label: str
    x: tuple[int, ...]
    series: tuple[Series, ...]
    after: str = ""
    unit: Literal["bytes", "seconds", "share"] = "bytes"


@dataclass(frozen=True)
class Tick:
    """A mark on an axis: where, and its words. `minor`: may be left out where there is little room."""

    at: float
    text: str
    minor: bool = False


@dataclass(frozen=True)
class Line:
    """The points of a line as SVG wants them, the full names of all series that lie on it, and the value at its end."""

    points: str
    names: tuple[str, ...]
    end: str
    end_x: float
    end_y: float


@dataclass(frozen=True)
class Label:
    """Words at the end of a line, moved so that none covers another; `more`: how many other series lie on it."""

    x: float
    y: float
    text: str
    more: int


@dataclass(frozen=True)
class Drawing:
    """Everything in the coordinates of a box of `width` by `height`."""

    plot: Plot
    width: int
    height: int
    left: float
    right: float
    top: float
    bottom: float
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    lines: tuple[Line, ...]
    labels: tuple[Label, ...]


def draw(plot: Plot) -> Drawing | None:
    """The drawing of `plot`, series that are equal everywhere as one line; None where there is nothing to draw."""
    linear = plot.unit == "share"
    series = [
        each for each in plot.series
        if len(each.values) == len(plot.x) and all(0 <= v <= 1 if linear else v > 0 for v in each.values)
    ]  # fmt: skip
    if len(plot.x) < 2 or not series:
        return None
    groups: dict[tuple[float, ...], list[Series]] = {}
    for each in series:
        groups.setdefault(each.values, []).append(each)
    least, most = min(min(values) for values in groups), max(max(values) for values in groups)
    scale, shown = _SCALES[plot.unit]
    marks = scale(least, most)
    bend = float if linear else math.log2
    low, high = bend(marks[0][0]), bend(marks[-1][0])
    first, last = bend(plot.x[0]), bend(plot.x[-1])
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def across(x: float) -> float:
        return round(_LEFT + (bend(x) - first) / (last - first) * (right - _LEFT), 1)

    def down(y: float) -> float:
        return round(bottom - (bend(y) - low) / (high - low) * (bottom - _TOP), 1)

    lines = tuple(
        Line(
            " ".join(f"{across(x)},{down(y)}" for x, y in zip(plot.x, values, strict=True)),
            tuple(each.name for each in members), shown(values[-1]), across(plot.x[-1]), down(values[-1]),
        )
        for values, members in groups.items()
    )  # fmt: skip
    steps = _powers(math.ceil(first), math.floor(last))
    at = [(step, str(step)) if linear else (1 << step, _tokens(1 << step)) for step in steps]
    x_ticks = tuple(Tick(across(x), text, bool(i % 2)) for i, (x, text) in enumerate(at))
    y_ticks = tuple(Tick(down(at), text) for at, text in marks if text)
    labels = _labels(lines, list(groups.values()))
    return Drawing(plot, WIDTH, HEIGHT, _LEFT, right, _TOP, bottom, x_ticks, y_ticks, lines, labels)


def _byte_ticks(least: float, most: float) -> list[tuple[float, str]]:
    """From the power of two below to the one above, with a text for each that is marked and "" at an end that is not."""
    low = math.floor(math.log2(least))
    high = max(math.ceil(math.log2(most)), low + 1)
    marked = [(2.0**power, _bytes(power)) for power in _powers(low, high)]
    return marked if marked[-1][0] == 2.0**high else [*marked, (2.0**high, "")]


def _second_ticks(least: float, most: float) -> list[tuple[float, str]]:
    """1, 2 and 5 in each power of ten, from the one below to the one above; where those are many, the powers of ten."""
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1
    every = [digit * 10.0**power for power in range(first, last) for digit in (1, 2, 5)]
    below = [at for at in every if at <= least * (1 + 1e-9)][-1]
    inside = [at for at in every if at >= below]
    above = next(at for at in inside if at >= most and at > below)
    kept = [at for at in inside if at <= above]
    few = len(kept) <= _MOST_TICKS
    named = [at for at in kept if few or round(math.log10(at), 6).is_integer()]
    return [(at, _plain_duration(at) if at in named else "") for at in kept]


def _plain_duration(seconds: float) -> str:
    """A tick: 1 ms, not 1.00 ms."""
    number, unit = units.duration(seconds).split(" ", 1)
    return f"{float(number):g} {unit}"


def _gib(value: float) -> str:
    return units.gib(int(value))


def _share_ticks(least: float, most: float) -> list[tuple[float, str]]:  # noqa: ARG001  shares are drawn on the whole of it
    """Quarters, from nothing to all."""
    return [(quarter / 4, f"{25 * quarter}%") for quarter in range(5)]


def _share(value: float) -> str:
    return f"{100 * value:.0f}%"


def _powers(low: int, high: int) -> range:
    step = 1
    while (high - low) // step + 1 > _MOST_TICKS:
        step *= 2
    return range(low, high + 1, step)


def _tokens(n: int) -> str:
    for size, letter in ((1 << 20, "M"), (1 << 10, "k")):
        if n % size == 0:
            return f"{n // size}{letter}"
    return str(n)


def _bytes(power: int) -> str:
    unit, rest = divmod(power, 10)
    return f"{1 << rest} {('B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[min(unit, 6)]}"


def _labels(lines: tuple[Line, ...], members: list[list[Series]]) -> tuple[Label, ...]:
    """From the lowest line up, each label beside its end or as far above the one below as needed; then pushed down from
    the top where they ran out of it."""
    order = sorted(range(len(lines)), key=lambda i: -lines[i].end_y)
    places: dict[int, float] = {}
    floor = float(HEIGHT)
    for i in order:
        places[i] = min(lines[i].end_y, floor)
        floor = places[i] - _LABEL_GAP
    ceiling = float(_TOP)
    for i in reversed(order):
        places[i] = max(places[i], ceiling)
        ceiling = places[i] + _LABEL_GAP
    return tuple(
        Label(line.end_x + 12, round(places[i], 1), members[i][0].short, len(members[i]) - 1)
        for i, line in enumerate(lines)
    )


_SCALES: dict[str, tuple[Callable[[float, float], list[tuple[float, str]]], Callable[[float], str]]] = {
    "bytes": (_byte_ticks, _gib),
    "seconds": (_second_ticks, units.duration),
    "share": (_share_ticks, _share),
}
