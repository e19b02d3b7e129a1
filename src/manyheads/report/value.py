"""Report: the tables that a person reads, and beside them the object that a program reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from manyheads.record import record

__all__ = ["Column", "Report", "Table"]


@record
class Column:
    """A column of a table. `align` is "left" for words or "right" for numbers, which are never broken over lines."""

    name: str
    align: str = "left"

    def __post_init__(self) -> None:
        if self.align not in ("left", "right"):
            raise ValueError(f"column {self.name!r} asks for align={self.align!r}; left or right would be valid")


@record
class Table:
    """The answer to one question. Every row has one text for each column; a text may hold line breaks."""

    question: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ValueError(
                    f"row {number} of {self.question!r} has {len(row)} texts for {len(self.columns)} columns"
                )


@record
class Report:
    """Everything a command has to say: `tables` and `notes` for a person, `data` for --json.

    `data` holds only what JSON holds: dict, list, str, int, float, bool, None. Numbers in it are exact; numbers in the
    tables are texts, rounded by `report.units`. `next_command` is the command worth typing next, or "".
    """

    title: str
    tables: tuple[Table, ...] = ()
    data: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    next_command: str = ""
