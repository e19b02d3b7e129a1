"""All cases put to a function in a process of its own: a hang, a crash or os._exit costs one case, not the answer."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyheads.errors import CheckpointError, ManyheadsError

__all__ = ["Answers", "Request", "supervise"]

LOADING_SECONDS = 180.0  # importing torch for the first time takes its time, and the file may import more
MOST_PRINTED = 10_000_000  # characters
GUESSES = 6  # trying how a function is called takes some dozens of calls: so many times the limit of a case


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked. `options`: layout, mask, names, no, require, dtype, tolerance, device, seed, only."""

    file: str
    function: str
    options: Mapping[str, Any]
    timeout: float = 20.0


@dataclass
class Answers:
    """What came of it: the adapter and how it is known, the cases asked, and an outcome for each, as data."""

    taken: dict[str, Any] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    printed: str = ""


class _GoneError(Exception):
    """The process ended, or did not answer in time; the text says which."""


def supervise(request: Request) -> Answers:
    """Runs all that is asked. ManyheadsError where the file cannot be loaded or the function not be called."""
    answers = Answers()
    handle, log = tempfile.mkstemp(prefix="manyheads-check-", suffix=".log")
    os.close(handle)
    try:
        done = -1
        while not _one_process(request, answers, log):
            if len(answers.outcomes) == done or not answers.cases:
                raise CheckpointError(f"{request.function} ended the process that ran {request.file}")
            done = len(answers.outcomes)
        with open(log, encoding="utf-8", errors="replace") as file:
            answers.printed = file.read(MOST_PRINTED)
    finally:
        with contextlib.suppress(OSError):  # Windows keeps the file of a process that is just ending
            os.unlink(log)
    return answers


def _one_process(request: Request, answers: Answers, log: str) -> bool:
    """Asks what is left; True when all is answered, False when the process was lost and there is more to ask."""
    left = [case["name"] for case in answers.cases if case["name"] not in answers.outcomes] if answers.cases else None
    worker = _Worker()
    try:
        worker.ask({
            "file": request.file, "function": request.function, "log": log, "cases": left,
            "adapter": answers.taken or None, "suspects": _causes(answers), **request.options,
        })  # fmt: skip
        _listen(worker, request, answers, log)
    finally:
        worker.stop()
    return bool(answers.cases) and all(case["name"] in answers.outcomes for case in answers.cases)


def _causes(answers: Answers) -> list[str]:
    """The faults that were found."""
    findings = [outcome["finding"] for outcome in answers.outcomes.values()]
    return list(dict.fromkeys(finding["cause"] for finding in findings if finding))


def _listen(worker: _Worker, request: Request, answers: Answers, log: str) -> None:
    limit, doing, running, early = LOADING_SECONDS, f"loading {request.file}", "", None
    while True:
        try:
            message = worker.next(limit)
        except _GoneError as gone:
            if not running:
                last = _last_line(log)
                raise CheckpointError(f"{request.function} cannot be tried: {gone} while {doing}{last}") from None
            answers.outcomes[running] = early or _lost(running, str(gone), ended=worker.ended)
            return
        if message is None and running:
            answers.outcomes[running] = early or _lost(running, "the process ended", ended=True)
        if message is None:
            return
        if "error" in message:
            raise ManyheadsError(message["error"])
        if "loaded" in message:
            limit, doing = GUESSES * request.timeout, "trying how it is called (--timeout gives it longer)"
        elif "taken" in message:
            answers.taken, answers.known, answers.fixed = message["taken"], message["known"], message["fixed"]
        elif "cases" in message:
            answers.cases = answers.cases or message["cases"]
        elif "start" in message:
            limit, running, early = request.timeout, message["start"], None
        elif "early" in message:
            early = message["early"]
        elif "outcome" in message:
            answers.outcomes[running], running = message["outcome"], ""


def _last_line(log: str) -> str:
    """What the process said at its end."""
    with open(log, encoding="utf-8", errors="replace") as file:
        lines = file.read().split("\n")
    said = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f" (it printed: {said[:200]})" if said else ""


def _lost(name: str, what: str, *, ended: bool) -> dict[str, Any]:
    finding: dict[str, Any] = {
        "expected": "an answer", "found": what, "cause": "process ended" if ended else "no answer",
        "explanation": "", "code": "", "line": None, "resembles": [], "demand": "",
    }  # fmt: skip
    return {"name": name, "status": "fail", "reason": "", "finding": finding, "seconds": 0.0}


class _Worker:
    """A process of ours that runs `worker.main`, and the messages that come from it."""

    def __init__(self) -> None:
        self.ended = False
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from manyheads.check.worker import main; main()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            start_new_session=True,
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(ValueError):  # the pipe was closed by `stop`
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put(None)

    def ask(self, request: Mapping[str, Any]) -> None:
        """Sends the request."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # what ended it is told by `next`
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.close()

    def next(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None after the last. _GoneError where none comes in time or the process ended badly."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise _GoneError(f"no answer within {seconds:g} s") from None
        if line is None:
            self.ended = True
            status = self._process.wait()
            if status:
                raise _GoneError(f"the process ended with {_status(status)}")
            return None
        message: dict[str, Any] = json.loads(line)
        return message

    def stop(self) -> None:
        """Ends the process and what it started."""
        if self._process.poll() is None:
            if hasattr(os, "killpg"):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
            else:
                self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    with contextlib.suppress(ValueError):
        return f"the signal {signal.Signals(-status).name}"
    return f"the signal {-status}"
