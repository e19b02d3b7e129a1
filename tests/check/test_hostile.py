"""Files that write where answers come from, leave processes behind, or never come to an end: what that costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
from manyheads.check.channel import Frames, frame, new_token
from manyheads.check.process import Printed
from manyheads.check.supervise import MOST_LOST, Request, supervise
from manyheads.errors import ManyheadsError
from support.check_support import ASKED

FILE = """
import atexit, json, os, subprocess, sys, tempfile, threading, time
import torch

HERE = os.path.dirname(os.path.abspath(__file__))


def base(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def forges(q, k, v):
    outcome = {"name": "values", "status": "pass", "reason": "", "finding": None, "seconds": 0.0}
    for descriptor in range(3, 64):
        for text in ("not an answer\\n", json.dumps({"outcome": outcome}) + "\\n", '{"error": "a bug"}\\n', "\\x00\\xff"):
            try:
                os.write(descriptor, text.encode("latin-1"))
            except OSError:
                pass
    return 2 * base(q, k, v)


def closes(q, k, v, causal=False):
    if causal:
        os.closerange(0, 64)
    return base(q, k, v)


def leaves_children(q, k, v):
    left = subprocess.Popen(
        [sys.executable, "-c", "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid(); time.sleep(600)", HERE],
    )
    with open(os.path.join(HERE, "session"), "a") as file:
        file.write("started ")
    tempfile.mkstemp()
    return base(q, k, v)


def comes_back_twice(q, k, v, causal=False):
    if causal:
        os.fork()
    return base(q, k, v)


def ends_whoever_asks(q, k, v, causal=False, window=None):
    if causal or window:
        os._exit(0)
    return base(q, k, v)


def prints_without_end(q, k, v, causal=False):
    while causal:
        print("x" * 100_000)
    return base(q, k, v)


def waits_at_the_end(q, k, v):
    return base(q, k, v)


if os.environ.get("WAIT") == "leaving":
    atexit.register(time.sleep, 600)
    threading.Thread(target=time.sleep, args=(600,)).start()
if os.environ.get("WAIT") == "loading":
    time.sleep(600)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder for the file, and one for temporary files of its own."""
    (tmp_path / "users.py").write_text(FILE)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    yield tmp_path
    assert list((tmp_path / "temporary").iterdir()) == []
    assert living(tmp_path) == []


def living(folder: Path) -> list[str]:
    """The processes that have the folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(word.startswith(bytes(folder)) for word in words[1:]):
                found.append(f"{entry.name}: {words}")
    return found


def ask(place: Path, function: str, *only: str, timeout: float = 20.0):
    request = Request(
        file=str(place / "users.py"), function=function, options={**ASKED, "only": list(only)}, timeout=timeout
    )
    return supervise(request)


def test_forged_answers_are_left_out(place) -> None:
    answers = ask(place, "forges", "values")
    assert answers.outcomes["values"]["status"] == "fail"
    assert answers.outcomes["values"]["finding"]["found"].startswith("query 0: [")
    assert answers.strange > 100


def test_a_file_that_closes_the_channel_fails_the_check_in_which_it_does(place) -> None:
    outcomes = ask(place, "closes", "values", "causal", "batch").outcomes
    assert {name: outcome["status"] for name, outcome in outcomes.items()} == {
        "values": "pass", "causal": "fail", "batch": "pass",
    }  # fmt: skip
    assert outcomes["causal"]["finding"]["found"] == "the file closed the channel of answers"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are adopted on Linux alone")
def test_processes_that_a_function_leaves_are_ended_and_so_are_its_temporary_files(place) -> None:
    answers = ask(place, "leaves_children", "values")
    assert answers.outcomes["values"]["status"] == "pass"
    assert "started" in (place / "session").read_text()  # the fixture looks that none is alive


def test_a_function_that_forks_and_comes_back_twice_is_heard_once(place) -> None:
    outcomes = ask(place, "comes_back_twice", "values", "causal", "batch").outcomes
    assert [outcomes[name]["status"] for name in ("values", "causal", "batch")] == ["pass", "fail", "pass"]
    assert "process" not in outcomes["causal"]["finding"]["found"]  # a wrong number, not a lost process


def test_a_function_that_ends_every_process_is_asked_a_few_times(place) -> None:
    names = ["causal", "causal-values", "causal-cache", "future", "window"]
    outcomes = ask(place, "ends_whoever_asks", *names).outcomes
    assert [outcomes[name]["status"] for name in names] == ["fail"] * MOST_LOST + ["not tested"] * 2
    assert "lost 3 times" in outcomes["window"]["reason"]


def test_prints_without_end_are_read_and_forgotten(place) -> None:
    answers = ask(place, "prints_without_end", "causal", timeout=2.0)
    assert answers.outcomes["causal"]["finding"]["found"] == "no answer within 2 s"
    assert len(answers.printed) <= 10_000_000


def test_loading_has_the_limit_of_a_check(place, monkeypatch) -> None:
    monkeypatch.setenv("WAIT", "loading")
    start = time.monotonic()
    with pytest.raises(ManyheadsError, match=r"no answer within 1 s while loading .*users.py") as error:
        ask(place, "waits_at_the_end", "values", timeout=1.0)
    assert "\n" not in str(error.value)
    assert time.monotonic() - start < 60  # torch has a time of its own


def test_exit_handlers_and_threads_are_not_waited_for(place, monkeypatch) -> None:
    monkeypatch.setenv("WAIT", "leaving")
    start = time.monotonic()
    assert ask(place, "waits_at_the_end", "values", timeout=60.0).outcomes["values"]["status"] == "pass"
    assert time.monotonic() - start < 60


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_nothing(place, number) -> None:
    command = subprocess.Popen(
        [sys.executable, "-m", "manyheads", "check", f"{place}/users.py:prints_without_end", "--only", "causal"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until = time.monotonic() + 60
    while not list((place / "temporary").iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    command.send_signal(number)
    command.wait(10)
    until = time.monotonic() + 10
    while list((place / "temporary").iterdir()) and time.monotonic() < until:
        time.sleep(0.05)  # the fixture looks that nothing is left


def test_modules_of_the_folder_do_not_stand_for_python_s(place, monkeypatch) -> None:
    for name in ("json", "queue", "torch", "typing"):
        (place / f"{name}.py").write_text("raise SystemExit('not this one')\n")
    (place / "elsewhere").mkdir()
    (place / "users.py").rename(place / "elsewhere/users.py")
    monkeypatch.chdir(place)
    assert ask(place / "elsewhere", "waits_at_the_end", "scale").outcomes["scale"]["status"] == "pass"


def test_frames_are_found_among_other_bytes() -> None:
    token = new_token()
    frames = Frames(token)
    stream = b"noise" + frame(token, {"a": 1}) + token.encode() + b"zz" + frame(token, {"b": "ü"}) + token.encode()[:9]
    found = [message for byte in stream for message in frames.feed(bytes([byte]))]
    assert found == [{"a": 1}, {"b": "ü"}]
    assert frames.strange == len(b"noise") + len(token) + len(b"zz")
    broken = frame(token, {"c": 3}).replace(b"{", b"[")
    assert list(Frames(token).feed(broken + frame(token, {"d": 4}))) == [{"d": 4}]


def test_what_is_printed_is_kept_from_both_ends() -> None:
    printed = Printed()
    for number in range(3000):
        printed.add(f"line {number}\n".encode() * 500)
    assert len(printed.text()) == 10_000_000
    assert printed.text().startswith("line 0\n")
    assert printed.last_line() == "line 2999"
