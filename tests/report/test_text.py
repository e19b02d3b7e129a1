"""The report as a person reads it: nothing cut, at any width, with or without a terminal."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import termios

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from manyheads.report import Column, Report, Table
from manyheads.report.text import as_text, render

TABLE = Table(
    "How much does the KV cache hold?",
    (Column("layout"), Column("KV heads a layer", "right"), Column("bytes a token", "right"), Column("from")),
    (
        ("as it is", "8", "327,680 B", "2 x 80 layers x 8 heads x 128 x 2 B"),
        ("mha", "64", "2,621,440 B", "2 x 80 layers x 64 heads x 128 x 2 B"),
    ),
    ("16-bit keys and values.",),
)
REPORT = Report("Llama 2 70B", (TABLE,), {}, ("A note.",), "manyheads cost llama-2-70b --what-if mha --json")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("no descriptor")


def printed(file: io.StringIO, **options: object) -> str:
    render(REPORT, file=file, **options)
    return file.getvalue()


def test_the_whole_page() -> None:
    assert as_text(REPORT) == (
        "Llama 2 70B\n"
        "\n"
        "How much does the KV cache hold?\n"
        "            KV heads      bytes a\n"
        "  layout     a layer        token  from\n"
        "  ────────  ────────  ───────────  ────────────────────────────────────\n"
        "  as it is         8    327,680 B  2 x 80 layers x 8 heads x 128 x 2 B\n"
        "  mha             64  2,621,440 B  2 x 80 layers x 64 heads x 128 x 2 B\n"
        "  16-bit keys and values.\n"
        "\n"
        "A note.\n"
        "\n"
        "Next: manyheads cost llama-2-70b --what-if mha --json\n"
    )


def test_words_are_wrapped_before_anything_else() -> None:
    text = as_text(REPORT, width=60)
    assert max(map(len, text.splitlines())) <= 60
    assert "  as it is         8    327,680 B  2 x 80 layers x 8 heads x\n" in text
    assert "                                   128 x 2 B\n" in text


def test_a_table_too_narrow_is_written_row_by_row() -> None:
    assert "\n  layout            mha\n  KV heads a layer  64\n  bytes a token     2,621,440 B\n" in as_text(
        REPORT, width=40
    )


def test_the_command_to_copy_stays_on_one_line() -> None:
    long = Report("t", next_command="manyheads cost " + "x" * 200)
    assert as_text(long).splitlines()[-1] == "Next: manyheads cost " + "x" * 200


def test_line_breaks_in_a_cell_are_kept() -> None:
    table = Table("q", (Column("a", "right"), Column("b")), (("1.00 GiB\n1,073,741,824 B", "x\ny"),))
    assert as_text(Report("t", (table,))).splitlines()[-2:] == ["         1.00 GiB  x", "  1,073,741,824 B  y"]
    narrow = Table("q", (Column("a" * 50),), (("x\ny",),))
    assert as_text(Report("t", (narrow,)), width=40).splitlines()[-2:] == [f"  {'a' * 50}  x", f"  {'':50}  y"]


def test_nothing_from_a_file_reaches_the_terminal_unseen() -> None:
    hostile = "\x1b]0;title\x07[bold]"
    table = Table(hostile, (Column(hostile),), ((hostile,),), (hostile,))
    text = as_text(Report(hostile, (table,), {}, (hostile,), hostile))
    assert text.count("\\x1b]0;title\\x07[bold]") == 7
    assert "\x1b" not in text


def test_empty_tables_and_empty_reports_print() -> None:
    assert as_text(Report("t")) == "t\n"
    assert as_text(Report("t", (Table("q", (Column("a"),), ()),))) == "t\n\nq\n  a\n  ─\n"


def test_a_file_gets_no_escape_sequences_and_80_columns() -> None:
    text = printed(io.StringIO())
    assert text == as_text(REPORT)
    assert max(map(len, text.splitlines())) <= 80


def test_a_terminal_gets_colour(monkeypatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = printed(Terminal())
    assert "\x1b[1" in text
    assert re.sub(r"\x1b\[[\d;]*m", "", text).split() == as_text(REPORT).split()


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_none_gets_none(monkeypatch, name: str, value: str) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv(name, value)
    assert "\x1b" not in printed(Terminal())
    assert "\x1b" in printed(Terminal(), color=True)


def test_the_width_is_the_terminals(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert printed(Terminal()) == as_text(REPORT, width=60)
    monkeypatch.setenv("COLUMNS", "0")
    assert printed(Terminal()) == as_text(REPORT, width=80)
    assert printed(io.StringIO(), width=60) == as_text(REPORT, width=60)


def test_a_real_terminal_is_asked_for_its_width(monkeypatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    with open(theirs, "w", encoding="utf-8") as file:
        render(REPORT, file=file)
        file.flush()
        shown = os.read(ours, 10_000).decode().replace("\r\n", "\n")
    os.close(ours)
    assert shown == as_text(REPORT, width=60)


def test_a_narrow_encoding_gets_plain_rules() -> None:
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    render(REPORT, file=file)
    file.flush()
    assert file.buffer.getvalue().decode() == as_text(REPORT).replace("─", "-")


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=30)
CELLS = st.lists(WORDS, max_size=4).map(" ".join)
NUMBERS = st.integers(min_value=0, max_value=10**24).map(lambda n: f"{n:,} B")


@given(st.lists(st.tuples(CELLS, NUMBERS, NUMBERS), min_size=1, max_size=4), st.integers(min_value=40, max_value=200))
def test_at_any_width_every_number_is_whole_and_no_word_is_lost(rows: list[tuple[str, str, str]], width: int) -> None:
    columns = (Column("what it is"), Column("bytes", "right"), Column("more bytes", "right"))
    text = as_text(Report("t", (Table("q", columns, tuple(rows)),)), width=width)
    for words, *numbers in rows:
        assert all(number in text for number in numbers)
        assert all(word in text for word in words.split())
    if "───" in text:  # a table: within the width
        assert max(map(cell_len, text.splitlines())) <= width
