"""What a command has to say, as one value, and the printers of it.

    Report, Table, Column      the value
    text.render                for a person: one table a question
    jsonform.dumps             for a program: the JSON object
    units                      the only place where numbers are rounded
    files.write_whole          a file written whole or not at all

The printers are imported by whoever prints: rich alone costs five times the start of Python.
"""

from __future__ import annotations

from manyheads.report.value import Column, Report, Table

__all__ = ["Column", "Report", "Table"]
