"""What the verbs share: where results go, and what is said of what is missing."""

from __future__ import annotations

import argparse
import errno
import json
import os
import sys

import pytest

from manyheads.cli import options as declared
from manyheads.cli.common import emit, nearest, need, progress
from manyheads.errors import BackendError, ManyheadsError
from manyheads.report import Column, Report, Table

REPORT = Report("Title", (Table("How much?", (Column("bytes", "right"),), (("1 B",),)),), {"bytes": 1})
TEXT = "Title\n\nHow much?\n  bytes\n  ─────\n    1 B\n"


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    mine = [declared.JSON, declared.OUTPUT]
    for option in mine:
        declared.add(parser, option)
    found = parser.parse_args(words)
    found.spoken = lambda text: declared.spoken(text, mine)
    return found


def test_text_goes_to_stdout(capsys) -> None:
    emit(REPORT, options())
    assert capsys.readouterr() == (TEXT, "")


def test_json_goes_to_stdout(capsys) -> None:
    emit(REPORT, options("--json"))
    out, err = capsys.readouterr()
    assert (json.loads(out), err) == ({"bytes": 1}, "")


@pytest.mark.parametrize(("words", "content"), [([], TEXT), (["--json"], '{\n  "bytes": 1\n}\n')])
def test_a_file_gets_the_same_and_stdout_nothing(tmp_path, capsys, words: list[str], content: str) -> None:
    path = tmp_path / "out"
    emit(REPORT, options("--output", str(path), *words))
    assert path.read_text(encoding="utf-8") == content
    assert capsys.readouterr() == ("", f"wrote {path}\n")


def test_a_file_that_cannot_be_is_an_error_and_nothing_is_printed(tmp_path, capsys) -> None:
    with pytest.raises(ManyheadsError, match="is a folder"):
        emit(REPORT, options("--output", str(tmp_path)))
    assert capsys.readouterr() == ("", "")
    assert os.listdir(tmp_path) == []


def test_what_is_said_of_parameters_is_said_of_options(capsys) -> None:
    table = Table("How much?", (Column("bytes"),), (("output=3",),), ('output="FILE" keeps it',))
    emit(Report("Title", (table,), {"notes": ["see json="], "text": "json=5"}, ("json=True is an object",)), options())
    out = " ".join(capsys.readouterr().out.split())
    assert "output=3" in out  # a cell may hold what a file says
    assert "--output FILE keeps it" in out
    assert "--json is an object" in out
    report = Report("Title", (), {"notes": ["see json="], "text": "json=5"})
    emit(report, options("--json"))
    assert json.loads(capsys.readouterr().out) == {"notes": ["see --json"], "text": "json=5"}


def test_progress_is_one_line_on_stderr(capsys) -> None:
    progress("reading\nlayer\x1b 1")
    assert capsys.readouterr() == ("", "reading layer\\x1b 1\n")


def test_progress_that_nobody_can_read_does_not_end_the_work(monkeypatch) -> None:
    class Full:
        def write(self, text: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        flush = write

    monkeypatch.setattr(sys, "stderr", Full())
    progress("reading")


def test_nearest() -> None:
    assert nearest("mistrl", ["llama", "mistral"]) == "; did you mean mistral?"
    assert nearest("xyz", ["llama", "mistral"]) == ""


def test_what_is_needed_is_named_before_the_work() -> None:
    need("json", to="count")
    with pytest.raises(BackendError, match=r"^no_such_package is needed to run a model; pip install 'manyheads\[mod"):
        need("no_such_package", to="run a model")
