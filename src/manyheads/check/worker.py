"""The process that runs the user's code: a request on standard input, a line of JSON for each thing that happens.

What the user's file prints, from Python or from C, goes to a log and never among the answers. Messages, in order:

    {"loaded": true}                                  the file is there and so is the function
    {"taken": adapter, "known": ..., "left": ...}     how it is called
    {"cases": [...]}                                  what will be asked
    {"start": name}, {"early": finding}, {"outcome": ...}   for each case
    {"error": text}                                   it cannot be loaded or called
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, TextIO

__all__ = ["main"]


def main() -> None:
    """Answers one request."""
    request = json.loads(sys.stdin.readline())
    answers = _keep_stdout_apart(request["log"])

    def say(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    from manyheads.errors import ManyheadsError

    try:
        _answer(request, say)
    except ManyheadsError as error:
        say({"error": str(error)})


def _keep_stdout_apart(log: str) -> TextIO:
    """The stream of answers; from here on standard output and error are the log."""
    kept = os.fdopen(os.dup(1), "w", encoding="utf-8")
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # a file that asks a question gets no answer instead of waiting for one
    return kept


def _answer(request: Mapping[str, Any], say: Any) -> None:
    from manyheads.check.adapter import Adapter
    from manyheads.check.catalogue import CASES
    from manyheads.check.examine import examine_all
    from manyheads.check.guess import guess
    from manyheads.check.load import load, settings_of
    from manyheads.check.requests import chosen_cases, subject_and_wishes
    from manyheads.check.subject import CallError
    from manyheads.errors import CheckpointError

    path = os.path.abspath(request["file"])
    function, module = load(path, request["function"])
    subject, wishes, required = subject_and_wishes(function, settings_of(function, module), {**request, "file": path})
    cases = chosen_cases(CASES, request["only"])
    say({"loaded": True})
    if request["adapter"] is None:
        try:
            adapter, known = guess(subject, wishes)
        except CallError as error:
            where = f" (line {error.line})" if error.line else ""
            raise CheckpointError(f"{request['function']} cannot be called: {error}{where}") from error
        say({"taken": adapter.to_data(), "known": known, "fixed": sorted(subject.fixed)})
    else:
        adapter = Adapter.from_data(request["adapter"])
    subject = replace(subject, adapter=adapter)
    asked = request["cases"] if request["cases"] is not None else [case.name for case in cases]
    facts = ("name", "suite", "proves", "needs", "resembles")
    say({"cases": [{fact: getattr(case, fact) for fact in facts} for case in cases]})
    for outcome in examine_all(
        replace(subject, suspects=tuple(request["suspects"])), (case for case in cases if case.name in asked),
        required=required, start=lambda case: say({"start": case.name}), early=lambda found: say({"early": asdict(found)}),
    ):  # fmt: skip
        say({"outcome": asdict(outcome)})


if __name__ == "__main__":
    main()
