"""The process that runs the user's code: a request on standard input, a message for each thing that happens.

What the user's file prints, from Python or from C, goes to standard error and never among the answers, which have a
descriptor and a token of their own. Messages, in order:

    {"ready": true}                                   torch is there; what follows is the user's time
    {"loaded": true}                                  the file is there and so is the function
    {"trying": true}                                  a call of it has come back
    {"taken": adapter, "known": ..., "fixed": ...}    how it is called
    {"cases": [...]}                                  what will be asked
    {"start": name}, {"early": outcome}, {"outcome": ...}   for each case
    {"error": text}                                   it cannot be loaded or called
    {"bug": text}                                     we failed, not they
    {"done": true}

It ends without exit handlers: those of the user's file may wait for ever.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

__all__ = ["main"]

Say = Callable[[Mapping[str, Any]], None]
_BEAT = 0.1  # seconds between two signs of life


def main() -> None:
    """Answers one request."""
    request = json.loads(sys.stdin.readline())
    say, streams = _speaker(_keep_stdout_apart(), request.pop("token")), (sys.stdout, sys.stderr)
    from manyheads.errors import ManyheadsError

    try:
        _answer(request, say)
        last: dict[str, Any] = {"done": True}
    except ManyheadsError as error:
        last = {"error": str(error)}
    except Exception:  # noqa: BLE001 what their code raises is caught where it is called: this is ours
        last = {"bug": traceback.format_exc()}
    for stream in streams:
        with contextlib.suppress(OSError, ValueError):  # closed by the file
            stream.flush()
    say(last)
    os._exit(0)


def _keep_stdout_apart() -> int:
    """The descriptor of answers; from here on standard output is standard error, and standard input is empty."""
    kept = os.dup(1)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # a file that asks a question gets no answer instead of waiting for one
    os.close(null)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return kept


def _speaker(descriptor: int, token: str) -> Say:
    from manyheads.check.channel import CLOSED, send

    owner = os.getpid()

    def say(message: Mapping[str, Any]) -> None:
        if os.getpid() != owner:  # a function that forked and came back twice
            os._exit(0)
        try:
            send(descriptor, token, message)
        except OSError:
            os._exit(CLOSED)

    return say


def _beats(say: Say) -> Callable[[], None]:
    """A sign of life now and then, so that many quick calls are told from one that hangs."""
    last = [time.monotonic()]

    def beat() -> None:
        if time.monotonic() - last[0] > _BEAT:
            last[0] = time.monotonic()
            say({"trying": True})

    return beat


def _answer(request: Mapping[str, Any], say: Say) -> None:
    import torch

    from manyheads.check.catalogue import CASES
    from manyheads.check.examine import examine_all
    from manyheads.check.load import load
    from manyheads.check.multihead.adapter import adapter_from
    from manyheads.check.multihead.subject import MultiheadSubject
    from manyheads.check.requests import chosen_cases, subject_and_wishes
    from manyheads.check.subject import CallError
    from manyheads.check.targets import adapter_of
    from manyheads.errors import CheckpointError

    if "OMP_NUM_THREADS" not in os.environ:  # the tensors are tiny: more threads only wait for each other
        torch.set_num_threads(1)
    say({"ready": True})
    path = os.path.abspath(request["file"])
    loaded = load(path, request["function"])
    subject, wishes, required = subject_and_wishes(loaded, {**request, "file": path})
    cases = chosen_cases(CASES, request["only"], with_weights=isinstance(subject, MultiheadSubject))
    say({"loaded": True})
    if request["adapter"] is None:
        try:
            adapter, known = adapter_of(replace(subject, beat=_beats(say)), wishes)
        except CallError as error:
            where = f" (line {error.line})" if error.line else ""
            raise CheckpointError(f"{request['function']} cannot be called: {error}{where}") from error
        say({"taken": adapter.to_data(), "known": known, "fixed": sorted(subject.fixed)})
    else:
        adapter = adapter_from(request["adapter"])
    subject = replace(subject, adapter=adapter)
    asked = request["cases"] if request["cases"] is not None else [case.name for case in cases]
    facts = ("name", "suite", "proves", "needs", "resembles")
    say({"cases": [{fact: getattr(case, fact) for fact in facts} for case in cases]})
    for outcome in examine_all(
        replace(subject, suspects=tuple(request["suspects"])), (case for case in cases if case.name in asked),
        required=required, start=lambda case: say({"start": case.name}), early=lambda found: say({"early": asdict(found)}),
    ):  # fmt: skip
        say({"outcome": asdict(outcome)})
