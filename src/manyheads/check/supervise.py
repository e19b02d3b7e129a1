"""All cases put to a function in a process of its own: a hang, a crash or os._exit costs one case, not the answer."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from manyheads.check.process import GoneError, Printed, Process
from manyheads.errors import CheckpointError, ManyheadsError

__all__ = ["Answers", "Request", "supervise"]

STARTING_SECONDS = 180.0  # Python and torch, from a cold disk: none of it is the user's
GUESSES = 6  # trying how a function is called takes some dozens of calls: so many times the limit of one
MOST_LOST = 3  # processes that a function may end or hang before nothing more is asked


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked. `options`: layout, mask, names, no, require, dtype, tolerance, device, seed, only."""

    file: str
    function: str
    options: Mapping[str, Any]
    timeout: float = 20.0


@dataclass
class Answers:
    """What came of it: the adapter and how it is known, the cases asked, and an outcome for each, as data.

    `strange`: bytes that the user's code wrote where answers come from.
    """

    taken: dict[str, Any] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)
    fixed: list[str] = field(default_factory=list)
    cases: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    printed: str = ""
    strange: int = 0


def supervise(request: Request) -> Answers:
    """Runs all that is asked. ManyheadsError where the file cannot be loaded or the function not be called; RuntimeError
    where the process failed for a fault of ours."""
    answers, printed = Answers(), Printed()
    try:
        lost = 0
        while not _one_process(request, answers, printed):
            lost += 1
            if not answers.cases:
                raise CheckpointError(f"{request.function} ended the process that ran {request.file}")
            if lost == MOST_LOST:
                _give_up(answers)
    finally:
        answers.printed = printed.text()
    return answers


def _one_process(request: Request, answers: Answers, printed: Printed) -> bool:
    """Asks what is left; True when all is answered, False when the process was lost and there is more to ask."""
    left = _unanswered(answers)
    if answers.cases and not left:
        return True
    process = Process({
        "file": request.file, "function": request.function, "cases": left if answers.cases else None,
        "adapter": answers.taken or None, "suspects": _causes(answers), **request.options,
    }, printed)  # fmt: skip
    try:
        _listen(process, request, answers, printed)
    finally:
        process.stop()
        answers.strange += process.strange
    return bool(answers.cases) and not _unanswered(answers)


def _unanswered(answers: Answers) -> list[str]:
    return [case["name"] for case in answers.cases if case["name"] not in answers.outcomes]


def _give_up(answers: Answers) -> None:
    """What is left is not asked any more: the function ends or hangs every process that asks."""
    for name in _unanswered(answers):
        answers.outcomes[name] = {
            "name": name, "status": "not tested", "finding": None, "seconds": 0.0,
            "reason": f"its process was lost {MOST_LOST} times, so nothing more was asked",
        }  # fmt: skip


def _causes(answers: Answers) -> list[str]:
    """The faults that were found."""
    findings = [outcome["finding"] for outcome in answers.outcomes.values()]
    return list(dict.fromkeys(finding["cause"] for finding in findings if finding))


def _listen(process: Process, request: Request, answers: Answers, printed: Printed) -> None:
    """Takes one process's answers in, until it is done or lost."""
    limit, doing, running, early = STARTING_SECONDS, "starting Python and torch", "", None
    until = math.inf
    while True:
        try:
            message = process.next(min(limit, max(until - time.monotonic(), 0.0)))
        except GoneError as gone:
            if not running:
                said = printed.last_line()
                last = f" (it printed: {said[:200]})" if said else ""
                seconds = limit if time.monotonic() < until else GUESSES * request.timeout
                text = str(gone) if gone.ended else f"no answer within {seconds:g} s"
                raise CheckpointError(f"{request.function} cannot be tried: {text} while {doing}{last}") from None
            answers.outcomes[running] = early or _lost(running, str(gone), ended=gone.ended)
            return
        if "error" in message:
            raise ManyheadsError(message["error"])
        if "bug" in message:
            raise RuntimeError(message["bug"])
        if "done" in message:
            return
        if "ready" in message:
            limit, doing = request.timeout, f"loading {request.file} (timeout= gives it longer)"
        elif "loaded" in message:
            doing = "trying how it is called (timeout= gives it longer)"
            until = time.monotonic() + GUESSES * request.timeout
        elif "taken" in message:
            answers.taken, answers.known, answers.fixed = message["taken"], message["known"], message["fixed"]
        elif "cases" in message:
            answers.cases, until = answers.cases or message["cases"], math.inf
        elif "start" in message:
            running, early = message["start"], None
        elif "early" in message:
            early = message["early"]
        elif "outcome" in message:
            answers.outcomes[running], running = message["outcome"], ""


def _lost(name: str, what: str, *, ended: bool) -> dict[str, Any]:
    finding: dict[str, Any] = {
        "expected": "an answer", "found": what, "cause": "process ended" if ended else "no answer",
        "explanation": "", "code": "", "line": None, "resembles": [], "demand": "",
    }  # fmt: skip
    return {"name": name, "status": "fail", "reason": "", "finding": finding, "seconds": 0.0}
