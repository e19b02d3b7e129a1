"""A report for a person: one table a question, readable at 80 columns and in a pipe.

No number is ever cut or broken: columns of words are wrapped first, and a table that still does not fit is written row
by row. Colour only on a terminal, and not where NO_COLOR is set or TERM is dumb.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, TextIO

from manyheads.quoting import visible

if TYPE_CHECKING:
    from rich.console import Console

    from manyheads.report.value import Column, Report, Table

__all__ = ["as_text", "render"]

_PIPE_WIDTH = 80
_LEAST_WIDTH = 40
_LEAST_WORDS = 16  # a sentence in a narrower column is a tower that nobody reads
_GAP = 2


def render(report: Report, *, file: TextIO, width: int | None = None, color: bool | None = None) -> None:
    """Writes `report` to `file` in one piece.

    `width` in columns: by default the terminal's, or 80 where `file` is none. `color`: by default only on a terminal
    that wants it; without colour there are no escape sequences at all.
    """
    terminal = file.isatty()
    if width is None:
        width = _terminal_width(file) if terminal else _PIPE_WIDTH
    if color is None:
        color = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    wide_characters = (getattr(file, "encoding", None) or "utf-8").lower().startswith("utf")
    file.write(as_text(report, width=width, color=color, rule="─" if wide_characters else "-"))


def as_text(report: Report, *, width: int = _PIPE_WIDTH, color: bool = False, rule: str = "─") -> str:
    """`report` as one text that ends with a line break; `rule` is the character of the lines under the headings."""
    from rich.console import Console

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=max(width, _LEAST_WIDTH),
        height=25,  # without it rich asks the terminal again, and takes 80 columns where TERM is dumb
        force_terminal=color,
        no_color=not color,
        color_system="standard" if color else None,
        legacy_windows=False,
        markup=False,
        emoji=False,
        highlight=False,
    )
    _line(console, report.title, style="bold")
    for table in report.tables:
        _table(console, table, rule)
    if report.notes:
        _line(console)
        _notes(console, report.notes, indent="")
    if report.next_command:
        _line(console)
        _line(console, f"Next: {report.next_command}", style="bold")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _terminal_width(file: TextIO) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(file.fileno()).columns or _PIPE_WIDTH
    except (OSError, ValueError):
        return _PIPE_WIDTH


def _line(console: Console, text: str = "", *, style: str = "") -> None:
    """One line as it is: a command that a person will copy is never wrapped."""
    console.print(visible(text), style=style, soft_wrap=True)


def _notes(console: Console, notes: tuple[str, ...], *, indent: str) -> None:
    for note in notes:
        first, *others = _wrapped(visible(note), console.width - len(indent) - 2)
        _line(console, indent + first, style="dim")
        for line in others:
            _line(console, f"{indent}  {line}", style="dim")


def _table(console: Console, table: Table, rule: str) -> None:
    _line(console)
    _line(console, table.question, style="bold cyan")
    rows = [tuple(visible(text, keep_lines=True) for text in row) for row in table.rows]
    widths = _widths(table.columns, rows, console.width)
    if widths is None:
        _row_by_row(console, table.columns, rows)
    else:
        _grid(console, table.columns, rows, widths, rule)
    if table.notes:
        _notes(console, table.notes, indent="  ")


def _widths(columns: tuple[Column, ...], rows: list[tuple[str, ...]], width: int) -> list[int] | None:
    """The width of each column so that the table fits, or None where it cannot without breaking a number or a word."""
    texts = [[row[index] for row in rows] for index in range(len(columns))]
    wanted, least = [], []
    for column, cells in zip(columns, texts, strict=True):
        whole = max((_width(cell) for cell in cells), default=0)
        longest_word = max((_longest_word(cell) for cell in cells), default=0)
        words = max(longest_word, min(whole, _LEAST_WORDS))
        least.append(max(_longest_word(column.name), whole if column.align == "right" else words))
        wanted.append(max(whole, _heading_width(column)))
    room = width - _GAP * len(columns)
    if sum(least) > room:
        return None
    while sum(wanted) > room:
        widest = max((i for i in range(len(columns)) if wanted[i] > least[i]), key=lambda i: wanted[i])
        wanted[widest] -= 1
    return wanted


def _heading_width(column: Column) -> int:
    """Words want their heading on one line; numbers, narrower than what they are called, want it on two."""
    full = _width(column.name)
    if column.align == "left":
        return full
    least = max(_longest_word(column.name), 1)
    return next((width for width in range(least, full) if len(_wrapped(column.name, width)) <= 2), full)


def _width(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.split("\n")))


def _wrapped(text: str, width: int) -> list[str]:
    """`text` in lines of at most `width` cells, broken at spaces only; a longer word has a line of its own.

    rich's own wrapping cuts a word that fits when it ends in wide characters, and the standard library's counts those
    as narrow.
    """
    from rich.cells import cell_len

    lines = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}" if line else word
            if line and cell_len(longer) > width:
                lines.append(line)
                line = word
            else:
                line = longer
        lines.append(line)
    return lines


def _longest_word(text: str) -> int:
    from rich.cells import cell_len

    return max(map(cell_len, text.split()), default=0)


def _grid(
    console: Console, columns: tuple[Column, ...], rows: list[tuple[str, ...]], widths: list[int], rule: str
) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, show_header=False, padding=(0, 0, 0, _GAP), pad_edge=True)
    for column, width in zip(columns, widths, strict=True):
        grid.add_column(justify="right" if column.align == "right" else "left", width=width)
    grid.add_row(*(Text(name, style="bold") for name in _headings(columns, widths)))
    grid.add_row(*(Text(rule * width, style="dim") for width in widths))
    for row in rows:
        lines = (_wrapped(text, width) for text, width in zip(row, widths, strict=True))
        grid.add_row(*(Text("\n".join(cell)) for cell in lines))
    console.print(grid)


def _headings(columns: tuple[Column, ...], widths: list[int]) -> list[str]:
    """The names wrapped and pushed down, so that all end on the line above the rule."""
    names = [_wrapped(visible(column.name), width) for column, width in zip(columns, widths, strict=True)]
    height = max(map(len, names))
    return ["\n".join([""] * (height - len(lines)) + lines) for lines in names]


def _row_by_row(console: Console, columns: tuple[Column, ...], rows: list[tuple[str, ...]]) -> None:
    name_width = max(_width(column.name) for column in columns)
    for number, row in enumerate(rows):
        if number:
            _line(console)
        for column, text in zip(columns, row, strict=True):
            first, *others = text.split("\n")
            _line(console, f"  {visible(column.name):<{name_width}}  {first}")
            for other in others:
                _line(console, f"  {'':<{name_width}}  {other}")
