"""A file is written whole or not at all, and a failure leaves everything as it was."""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
from pathlib import Path

import pytest

from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.report import files
from manyheads.report.files import check_target, file_appearing, folder_appearing, write_all, write_whole


def test_text_and_bytes_arrive(tmp_path) -> None:
    write_whole(tmp_path / "a.txt", "2 × 80\n")
    assert (tmp_path / "a.txt").read_bytes() == b"2 \xc3\x97 80\n"
    write_whole(str(tmp_path / "b"), b"\x00\xff")
    assert (tmp_path / "b").read_bytes() == b"\x00\xff"
    assert sorted(os.listdir(tmp_path)) == ["a.txt", "b"]


def test_a_name_without_a_folder_is_in_the_current_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_whole("out.json", "{}\n")
    assert (tmp_path / "out.json").read_text() == "{}\n"


def test_an_old_file_is_replaced_and_keeps_its_permissions(tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    write_whole(path, "new")
    assert path.read_text() == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_new_file_has_the_permissions_of_any_new_file(tmp_path) -> None:
    (tmp_path / "plain").touch()
    write_whole(tmp_path / "a", "x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_is_followed(tmp_path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_link_to_nothing_yet_makes_its_target(tmp_path) -> None:
    (tmp_path / "link").symlink_to("real")
    write_whole(tmp_path / "link", "new")
    assert (tmp_path / "real").read_text() == "new"


def test_a_long_name_is_written(tmp_path) -> None:
    path = tmp_path / ("x" * 250)
    write_whole(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "'': that is no file name"),
        ("a\0b", "that is no file name"),
        ("{tmp}", "is a folder; the name of a file in it would be valid"),
        ("{tmp}/missing/out.json", "the folder {tmp}/missing does not exist; make it first or choose another"),
        ("{tmp}/file/out.json", "the folder {tmp}/file is not a folder; make it first or choose another"),
    ],
)
def test_a_target_that_cannot_be_is_refused_before_the_work(tmp_path, name: str, said: str) -> None:
    (tmp_path / "file").write_text("kept")
    for refuse in (check_target, lambda path: write_whole(path, "x")):
        with pytest.raises(ManyheadsError, match=re.escape(said.format(tmp=tmp_path))) as raised:
            refuse(name.format(tmp=tmp_path))
        assert "\n" not in str(raised.value)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("file", "kept")]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step: str, error) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(files.os, step, fail)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else ManyheadsError
    with pytest.raises(expected):
        write_whole(path, "new")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_text() == "old"


def test_a_failure_says_which_file_and_why(tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(ManyheadsError, match=rf"^cannot write {tmp_path}/a: No space left on device$"):
        write_whole(tmp_path / "a", "new")
    assert os.listdir(tmp_path) == []


def test_a_read_only_file_is_not_replaced(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o444)
    # Root, who runs the tests in a container, may write everything: the system's answer to anyone else is given here.
    monkeypatch.setattr(files.os, "access", lambda name, how: not (name == str(path) and how == os.W_OK))
    with pytest.raises(ManyheadsError, match="Permission denied"):
        write_whole(path, "new")
    assert path.read_text() == "old"


def test_a_device_is_written_straight_and_stays_a_device() -> None:
    before = os.stat(os.devnull)
    write_whole(os.devnull, "x")
    after = os.stat(os.devnull)
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)


def test_a_pipe_gets_the_content(tmp_path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(Path(pipe).read_text()))
    reader.start()
    write_whole(pipe, "through\n")
    reader.join(timeout=30)
    assert read == ["through\n"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_who_looks_meanwhile_sees_one_file_or_the_other(tmp_path) -> None:
    path = tmp_path / "a"
    versions = [letter * 300_000 for letter in "ab"]
    path.write_text(versions[0])
    done = threading.Event()
    seen: set[str] = set()

    def look() -> None:
        while not done.is_set():
            seen.add(path.read_text())

    looker = threading.Thread(target=look)
    looker.start()
    for number in range(50):
        write_whole(path, versions[number % 2])
    done.set()
    looker.join(timeout=30)
    assert seen
    assert seen <= set(versions)


def test_several_files_appear_together_or_none_does(tmp_path, monkeypatch) -> None:
    (tmp_path / "a").write_text("old")
    write_all({tmp_path / "a": "new", tmp_path / "b": b"new"})
    assert [(tmp_path / name).read_text() for name in "ab"] == ["new", "new"]
    with pytest.raises(ManyheadsError, match="does not exist"):
        write_all({tmp_path / "a": "newer", tmp_path / "none" / "b": "newer"})
    assert (tmp_path / "a").read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_a_file_that_is_filled_bit_by_bit(tmp_path) -> None:
    with file_appearing(tmp_path / "a") as file:
        file.write(b"one ")
        assert "a" not in os.listdir(tmp_path)
        file.write(b"two")
    assert (tmp_path / "a").read_bytes() == b"one two"
    with pytest.raises(ZeroDivisionError), file_appearing(tmp_path / "a") as file:
        file.write(b"three" * (1 // 0))
    assert (tmp_path / "a").read_bytes() == b"one two"
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("name", ["x" * 300, "/".join(["d" * 200] * 30)], ids=["long", "deep"])
def test_a_name_too_long_for_the_system_is_refused(tmp_path, name: str) -> None:
    with pytest.raises(ManyheadsError, match="File name too long; a shorter one would be valid") as raised:
        check_target(tmp_path / name)
    assert len(str(raised.value)) < 400


def test_a_folder_appears_whole_or_leaves_nothing(tmp_path) -> None:
    target = tmp_path / "deep" / "er" / "model"

    def broken(part: Path) -> None:
        (part / "a").write_text("a")
        raise CheckpointError(f"{part / 'a'}: broken")

    with pytest.raises(CheckpointError) as raised, folder_appearing(target) as part:
        broken(part)
    assert str(raised.value) == f"{target / 'a'}: broken"
    assert os.listdir(tmp_path) == []
    with folder_appearing(target) as part:
        (part / "a").write_text("a")
        assert not target.exists()
    assert os.listdir(target.parent) == ["model"]
    assert (target / "a").read_text() == "a"
    (tmp_path / "plain").mkdir()
    assert target.stat().st_mode == (tmp_path / "plain").stat().st_mode
