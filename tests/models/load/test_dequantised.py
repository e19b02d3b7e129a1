"""The cache of dequantised models: whole entries or none, whatever happens on the way."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from manyheads.models.load import dequantised as unpacked
from manyheads.report.parts import part_path

numpy = pytest.importorskip("numpy")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

SHA = "ab" * 32


def fill(folder: Path) -> None:
    safetensors_numpy.save_file({"w": numpy.ones((4, 4), "float32")}, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")


@pytest.fixture
def entry(quiet_cache: Path) -> Path:
    return unpacked.entry_folder(SHA, "5.24.0")


def left_over(entry: Path) -> list[str]:
    return sorted(path.name for path in entry.parent.iterdir() if path != entry)


def test_an_entry_is_named_by_the_hash_and_the_version(quiet_cache: Path) -> None:
    assert unpacked.entry_folder(SHA, "5.24.0") == quiet_cache / "unpacked" / ("ab" * 16 + "-transformers-5.24.0")
    assert unpacked.entry_folder(SHA, "5.25.0") != unpacked.entry_folder(SHA, "5.24.0")


def test_the_hash_is_that_of_the_file(tmp_path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abc")
    # the published test vector of SHA-256
    assert unpacked.file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


FOLDERS = {
    "linux": ("XDG_CACHE_HOME", "xdg", "xdg/manyheads"),
    "linux, no variable": ("", "", "home/.cache/manyheads"),
    "darwin": ("", "", "home/Library/Caches/manyheads"),
    "win32": ("LOCALAPPDATA", "local", "local/manyheads"),
    "win32, no variable": ("", "", "home/AppData/Local/manyheads"),
}


@pytest.mark.parametrize("system", FOLDERS)
def test_the_cache_is_where_each_system_wants_it(monkeypatch, tmp_path, system: str) -> None:
    variable, value, expected = FOLDERS[system]
    for name in ("MANYHEADS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", system.partition(",")[0])
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / value))
    assert unpacked.cache_folder() == tmp_path / expected


def test_without_a_home_it_is_an_error_of_the_system(monkeypatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("no home directory")

    monkeypatch.delenv("MANYHEADS_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(OSError, match="no home"):
        unpacked.cache_folder()


def test_an_entry_is_kept_whole_and_found_again(entry: Path) -> None:
    assert not unpacked.intact(entry, SHA)
    assert unpacked.keep(entry, SHA, fill) == ""
    assert unpacked.intact(entry, SHA)
    assert not unpacked.intact(entry, "cd" * 32)
    assert left_over(entry) == []


def break_truncated(entry: Path) -> None:
    path = entry / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def break_header(entry: Path) -> None:
    path = entry / "model.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)


def break_manifest(entry: Path) -> None:
    (entry / "manyheads.json").write_text("[]")


def break_missing(entry: Path) -> None:
    (entry / "config.json").unlink()


@pytest.mark.parametrize("harm", [break_truncated, break_header, break_manifest, break_missing])
def test_a_broken_entry_is_seen_and_replaced(entry: Path, harm) -> None:
    assert unpacked.keep(entry, SHA, fill) == ""
    harm(entry)
    assert not unpacked.intact(entry, SHA)
    assert unpacked.keep(entry, SHA, fill) == ""
    assert unpacked.intact(entry, SHA)
    assert left_over(entry) == []


def test_a_full_disk_leaves_nothing(entry: Path) -> None:
    def full(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    assert unpacked.keep(entry, SHA, full) == "No space left on device"
    assert list(entry.parent.iterdir()) == []


def test_an_interrupt_leaves_nothing(entry: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpacked.keep(entry, SHA, interrupted)
    assert list(entry.parent.iterdir()) == []


def test_what_was_written_badly_is_not_kept(entry: Path) -> None:
    assert "could not be read back" in unpacked.keep(entry, SHA, lambda folder: (folder / "config.json").touch())
    assert list(entry.parent.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_a_reason_and_no_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MANYHEADS_CACHE", str(tmp_path / "file"))
    assert unpacked.keep(unpacked.entry_folder(SHA, "5"), SHA, fill) == "Not a directory"


def test_of_two_processes_the_second_leaves_the_first_one_s_entry(entry: Path) -> None:
    def overtaken(folder: Path) -> None:
        fill(folder)
        assert unpacked.keep(entry, SHA, fill) == ""
        (entry / "first").touch()

    assert unpacked.keep(entry, SHA, overtaken) == ""
    assert (entry / "first").exists()
    assert unpacked.intact(entry, SHA)
    assert left_over(entry) == []


def test_what_a_killed_process_left_is_removed(entry: Path) -> None:
    entry.parent.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        pass
    own = Path(part_path(str(entry)))
    own.mkdir()
    Path(str(own).replace(f"-{os.getpid()}-", f"-{ended.pid}-")).mkdir()
    assert unpacked.keep(entry, SHA, fill) == ""
    assert left_over(entry) == [own.name]


def test_the_manifest_says_what_it_was_made_from(entry: Path) -> None:
    unpacked.keep(entry, SHA, fill)
    own = json.loads((entry / "manyheads.json").read_text())
    assert own["source_sha256"] == SHA
    assert own["files"] == {name: (entry / name).stat().st_size for name in ("config.json", "model.safetensors")}
