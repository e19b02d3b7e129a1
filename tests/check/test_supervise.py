"""A user's file in a process of its own: what it prints, how it hangs, crashes and exits, and what that costs."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
from manyheads.check.summary import summary
from manyheads.check.supervise import Request, supervise
from manyheads.errors import ManyheadsError
from support.check_support import ASKED

FILE = """
import ctypes, os, sys, time
import torch

print("hello from the file")
os.write(1, b"and past Python\\n")
input_at_load = sys.stdin.read()


def base(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, dim=-1) @ v


def hangs(q, k, v, causal=False):
    if causal:
        time.sleep(600)
    return base(q, k, v)


def leaves(q, k, v, causal=False):
    if causal:
        os._exit(0)
    return base(q, k, v)


def crashes(q, k, v, causal=False):
    if causal:
        ctypes.string_at(0)
    return base(q, k, v)


def exits(q, k, v, causal=False):
    if causal:
        sys.exit(3)
    return base(q, k, v)


def slow_when_small(q, k, v):
    if q.shape[-1] < 4:
        time.sleep(600)
    return 2 * base(q, k, v)


def never(q, k, v):
    time.sleep(600)


def gone(q, k, v):
    os._exit(7)
"""


@pytest.fixture
def ask(tmp_path):
    path = tmp_path / "users.py"
    path.write_text(FILE)

    def ask(function: str, *only: str, timeout: float = 20.0):
        options = {**ASKED, "only": list(only)}
        return supervise(Request(file=str(path), function=function, options=options, timeout=timeout))

    return ask


def test_prints_are_kept_apart_and_nothing_is_waited_for(ask) -> None:
    answers = ask("base", "values", "causal")
    assert sorted(answers.printed.splitlines()) == ["and past Python", "hello from the file"]
    assert answers.outcomes["values"]["status"] == "pass"
    assert answers.outcomes["causal"]["status"] == "not tested"
    assert answers.taken["layout"] == "bhtd"


def test_a_hang_costs_one_case(ask) -> None:
    answers = ask("hangs", "values", "causal", "batch", timeout=4.0)
    assert {name: each["status"] for name, each in answers.outcomes.items()} == {
        "values": "pass", "causal": "fail", "batch": "pass",
    }  # fmt: skip
    assert answers.outcomes["causal"]["finding"]["found"] == "no answer within 4 s"


@pytest.mark.parametrize(
    ("function", "found"),
    [("crashes", "the process ended with the signal SIGSEGV"), ("leaves", "the process ended")],
)
def test_a_crash_costs_one_case(ask, function, found) -> None:
    answers = ask(function, "values", "causal", "batch")
    assert [answers.outcomes[name]["status"] for name in ("values", "causal", "batch")] == ["pass", "fail", "pass"]
    assert answers.outcomes["causal"]["finding"]["found"] == found


def test_sys_exit_is_a_failure_of_that_case_with_its_line(ask) -> None:
    finding = ask("exits", "causal").outcomes["causal"]["finding"]
    assert finding["found"] == "it called sys.exit(3)"
    assert FILE.splitlines()[finding["line"] - 1].strip() == "sys.exit(3)"


def test_a_fault_found_before_a_hang_on_a_smaller_input_is_kept(ask) -> None:
    finding = ask("slow_when_small", "values", timeout=4.0).outcomes["values"]["finding"]
    assert finding["found"].startswith("batch 0, head 0, query 0: [")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("never", "never cannot be tried: no answer within 1 s while trying how it is called"),
        ("gone", "gone cannot be tried: the process ended with exit status 7"),
    ],
)
def test_what_cannot_be_tried_at_all(ask, function, message) -> None:
    with pytest.raises(ManyheadsError, match=message):
        ask(function, timeout=1.0)


def test_the_summary_is_json(ask, tmp_path) -> None:
    options = {**ASKED, "only": ["scale"]}
    report = summary(Request(file="users.py", function="base", options=options), ask("base", "scale"))
    data = json.loads(json.dumps(report.data))
    assert (data["schema"], data["ok"], data["passed"], data["failed"]) == ("manyheads.check/2", True, 1, 0)
    assert data["checks"][0]["resembles"] == ["https://github.com/vllm-project/vllm/issues/48658"]


def test_a_fault_of_ours_is_not_blamed_on_the_function(ask, tmp_path) -> None:
    """The judge itself is broken here, from the user's file."""
    (tmp_path / "users.py").write_text(
        FILE + "\nfrom manyheads.check import judges\njudges.place = lambda index, shape: 1 / 0\n"
        "def twice(q, k, v):\n    return 2 * base(q, k, v)\n"
    )
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        ask("twice", "values")


def test_torch_has_one_thread_unless_the_user_says_otherwise(tmp_path, monkeypatch) -> None:
    """On a machine of two busy cores, two threads took ten times as long: tiny tensors, and each waits for the other."""
    path = tmp_path / "threads.py"
    path.write_text(
        "import torch\nprint(torch.get_num_threads())\n"
        "def f(q, k, v):\n    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v\n"
    )
    request = Request(file=str(path), function="f", options={**ASKED, "only": ["scale"]})
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert supervise(request).printed == "1\n"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert supervise(request).printed == "2\n"
