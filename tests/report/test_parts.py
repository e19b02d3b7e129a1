"""Parts of what is being written: whose they are, and which of them nobody is writing any more."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from manyheads.report import parts
from manyheads.report.parts import clear_parts, part_folder, part_path

pytestmark = pytest.mark.skipif(os.name != "posix", reason="numbers of processes are asked for as POSIX does")


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    return ended.pid


def test_a_name_is_hidden_short_and_new_each_time(tmp_path: Path) -> None:
    names = {os.path.basename(part_path(str(tmp_path / ("\u00e9" * 120)))) for _ in range(50)}
    assert len(names) == 50
    for name in names:
        assert name.startswith("." + "\u00e9" * 32 + ".manyheads-")
        assert len(name.encode()) <= 255
        assert f"-{os.getpid()}-" in name


def as_written_by(path: str, pid: int | None = None, machine: str = "", boot: str = "") -> Path:
    """The part at `path`, as if another process, machine or boot had made it."""
    found = re.fullmatch(r"(.*\.manyheads-)(\w+)-(\w+)-(\d+)(-\w+\.part)", path)
    assert found is not None
    return Path(f"{found[1]}{machine or found[2]}-{boot or found[3]}-{pid or found[4]}{found[5]}")


CASES: dict[str, tuple[Callable[[str, int], Path], bool]] = {
    "its writer has ended": (as_written_by, True),
    "its writer runs": (lambda path, dead: as_written_by(path), False),
    "its writer is another user's": (lambda path, dead: as_written_by(path, 1), False),
    "the machine was started again": (lambda path, dead: as_written_by(path, boot="00000000"), True),
    "another machine writes it": (lambda path, dead: as_written_by(path, dead, machine="00000000"), False),
    "of another machine, and a day old": (lambda path, dead: old(as_written_by(path, dead, machine="00000000")), True),
    "not one of ours": (lambda path, dead: Path(path).parent / ".model.part", False),
    "of an earlier form": (lambda path, dead: Path(path).parent / f".a.manyheads-{dead}.part", False),
}


def old(path: Path) -> Path:
    path.touch()
    os.utime(path, (time.time() - 90_000, time.time() - 90_000))
    return path


@pytest.mark.parametrize(("make", "gone"), CASES.values(), ids=CASES)
def test_what_is_cleared(tmp_path: Path, dead: int, make: Callable[[str, int], Path], gone: bool) -> None:
    file = make(part_path(str(tmp_path / "model")), dead)
    if not file.exists():
        file.touch()
    (tmp_path / "kept").write_text("kept")
    clear_parts(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == sorted(["kept"] + [file.name] * (not gone))


def test_folders_go_with_what_is_in_them_and_links_are_not_followed(tmp_path: Path, dead: int) -> None:
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "kept").write_text("kept")
    part = as_written_by(part_path(str(tmp_path / "here" / "model")), dead)
    (part / "model").mkdir(parents=True)
    (part / "model" / "link").symlink_to(tmp_path / "else", target_is_directory=True)
    link = as_written_by(part_path(str(tmp_path / "here" / "model")), dead)
    link.symlink_to(tmp_path / "else", target_is_directory=True)
    clear_parts(str(tmp_path / "here"))
    assert os.listdir(tmp_path / "here") == []
    assert (tmp_path / "else" / "kept").read_text() == "kept"


def test_the_next_writer_clears(tmp_path: Path, dead: int) -> None:
    as_written_by(part_path(str(tmp_path / "one")), dead).mkdir()
    with part_folder(str(tmp_path / "two")) as folder:
        assert os.listdir(tmp_path) == [os.path.basename(folder)]
    assert os.listdir(tmp_path) == []


def test_what_cannot_be_looked_at_is_no_error(tmp_path: Path, monkeypatch) -> None:
    clear_parts(str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    clear_parts("")
    monkeypatch.setattr(parts.os, "kill", lambda *_: (_ for _ in ()).throw(OverflowError()))
    as_written_by(part_path("model"), 9_999_999_999).touch()
    clear_parts("")
    assert len(os.listdir()) == 1
