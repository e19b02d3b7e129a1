"""A signal to end: the exit status that shells know, and nothing hidden left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import manyheads.cli.stopping as stopping
from manyheads.cli.stopping import Stopped, stopped_by_signals

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")

# A verb that fills a file, a folder and a scratch folder, and never ends.
WRITER = """
import os, sys, time, types
from pathlib import Path
import manyheads.cli.main as door
from manyheads.report.files import file_appearing, folder_appearing
from manyheads.report.parts import part_folder

def run(options):
    with file_appearing("file") as file, folder_appearing(Path("deep/model").absolute()) as folder:
        with part_folder(os.path.abspath("scratch")) as scratch:
            file.write(b"x" * 100_000)
            (folder / "model.safetensors").write_bytes(b"x" * 100_000)
            (Path(scratch) / "config.json").write_text("{}")
            print("ready", flush=True)
            time.sleep(600)

module = types.ModuleType("manyheads.cli.write")
module.configure, module.run = lambda parser: None, run
sys.modules["manyheads.cli.write"] = module
door.VERBS["write"] = "writes"
sys.exit(door.main(["write"]))
"""

# What a shell starts in the background ignores interrupts, and its children with it: the writer does not.
TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""


def ended_by(number: int, folder: Path) -> tuple[int, str, str]:
    """Status, stdout and stderr of the writer in `folder` after a signal."""
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL + WRITER], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(os.listdir(folder)) == 3  # two parts, and the folder above the third
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    return process.returncode, out, err


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_what_was_begun_goes_away(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    assert ended_by(number, tmp_path) == (128 + number, "", "")
    assert os.listdir(tmp_path) == []


def test_what_a_kill_left_goes_with_the_next_that_writes_there(tmp_path: Path) -> None:
    from manyheads.report.files import write_whole

    assert ended_by(signal.SIGKILL, tmp_path)[0] == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 3
    assert len(os.listdir(tmp_path / "deep")) == 1
    write_whole(tmp_path / "other", "new")
    write_whole(tmp_path / "deep" / "other", "new")
    assert sorted(os.listdir(tmp_path)) == ["deep", "other"]
    assert os.listdir(tmp_path / "deep") == ["other"]


def test_a_signal_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    before = TERMINAL + "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"  # as nohup does
    process = subprocess.Popen(
        [sys.executable, "-c", before + WRITER], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM


def test_handlers_are_there_inside_only_and_others_stay() -> None:
    own = lambda *_: None  # noqa: E731
    before = signal.signal(signal.SIGTERM, own)
    try:
        with stopped_by_signals():
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGHUP) is stopping._stop
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not issubclass(Stopped, Exception)  # which code on the way out may catch
