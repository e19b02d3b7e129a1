"""A plot as a picture of its own, for a page of documentation: SVG without script, font or address outside itself."""

from __future__ import annotations

from xml.sax.saxutils import escape

from manyheads.report.plot import Drawing, Plot, draw

__all__ = ["render_svg"]

_STYLE = """\
text { font: 14px system-ui, sans-serif; fill: #5d676e; }
.name { fill: #1d2327; font-weight: 550; }
.grid { stroke: #e2ded7; }
.leader { stroke: #c9c3ba; fill: none; }
.line { fill: none; stroke: #1d2327; stroke-width: 2.25; stroke-linecap: round; stroke-linejoin: round; }
.line-1 { stroke: #0f6b66; stroke-width: 3.5; }
.line-3 { stroke-dasharray: 7 5; }
.line-4 { stroke-dasharray: 1.5 5; }
.line-5 { stroke-dasharray: 9 4 1.5 4; }
.line-6 { stroke-dasharray: 4 4; stroke: #5d676e; }"""
_STYLES = 6


def render_svg(plot: Plot) -> str | None:
    """`plot` as the text of an SVG file on a light ground; None where there is nothing to draw."""
    drawn = draw(plot)
    if drawn is None:
        return None
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {drawn.width} {drawn.height}" role="img">',
        f"<title>{_text(plot.title)}</title><desc>{_text(plot.description)}</desc>",
        f'<style>{_STYLE}</style><rect width="100%" height="100%" fill="#fcfbf9"/>',
        *_axes(drawn),
        *_lines(drawn),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axes(drawn: Drawing) -> list[str]:
    parts = []
    for tick in drawn.y_ticks:
        parts.append(_grid(drawn.left, tick.at, drawn.right, tick.at))
        parts.append(
            f'<text x="{drawn.left - 10}" y="{tick.at}" dy="0.35em" text-anchor="end">{_text(tick.text)}</text>'
        )
    for tick in drawn.x_ticks:
        parts.append(_grid(tick.at, drawn.top, tick.at, drawn.bottom))
        parts.append(f'<text x="{tick.at}" y="{drawn.bottom + 26}" text-anchor="middle">{_text(tick.text)}</text>')
    middle = (drawn.left + drawn.right) / 2
    label = f'<text x="{middle}" y="{drawn.height - 8}" text-anchor="middle">{_text(drawn.plot.x_label)}</text>'
    return [*parts, label]


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _lines(drawn: Drawing) -> list[str]:
    parts = []
    for number, line in reversed(list(enumerate(drawn.lines, start=1))):
        parts.append(f'<polyline class="line line-{min(number, _STYLES)}" points="{line.points}"/>')
    for line, label in zip(drawn.lines, drawn.labels, strict=True):
        more = f" + {label.more}" if label.more else ""
        parts.append(f'<path class="leader" d="M{line.end_x + 2},{line.end_y}L{label.x - 2},{label.y}"/>')
        parts.append(f'<text class="name" x="{label.x}" y="{label.y}" dy="0.35em">{_text(label.text + more)}</text>')
    return parts


def _text(text: str) -> str:
    return escape(text, {'"': "&quot;"})
