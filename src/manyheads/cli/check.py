"""`manyheads check FILE.py:FUNCTION`: our suites turned on the user's own attention function."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from manyheads.cli.common import UsageError, add_json, add_output, add_seed, emit, need, progress
from manyheads.errors import CheckpointError
from manyheads.quoting import shown

if TYPE_CHECKING:
    from manyheads.report import Report

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "target",
        metavar="FILE.py:FUNCTION",
        nargs="?",
        default="",
        help="a function of q, k, v, one of x and W_q, W_k, W_v, W_o, or a class; FILE.py is run as your code",
    )
    parser.add_argument(
        "--layout", metavar="AXES", default="", help="of q, k, v: bhtd, bthd, btd, htd, thd, td (else tried)"
    )
    parser.add_argument(
        "--mask", metavar="WAY", default="", choices=("visible", "blocked", "additive"),
        help="what a mask's True does: visible, blocked; or additive numbers (else tried)",
    )  # fmt: skip
    parser.add_argument(
        "--names", metavar="ROLE=NAME", action="append", default=[], help="q=query,causal=is_causal,..."
    )
    parser.add_argument(
        "--no", metavar="FEATURE", action="append", default=[], help="do not test window, bfloat16, ..."
    )
    parser.add_argument(
        "--require",
        metavar="FEATURE",
        action="append",
        default=[],
        help="a fault where it takes no mask, window, ... or is weak in it: float16, empty-rows, ...",
    )
    parser.add_argument("--only", metavar="CHECK", action="append", default=[], help="these checks or suites alone")
    parser.add_argument("--list", action="store_true", help="every check, and what it proves")
    parser.add_argument("--dtype", metavar="TYPE", default="", help="values in fp32, fp64, bf16, fp16 (default fp32)")
    parser.add_argument(
        "--tolerance", metavar="X", default="", help="how far off, relative to 1 + the largest (default: the dtype's)"
    )
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="where the tensors are: cpu, cuda, mps (default cpu)"
    )
    parser.add_argument("--timeout", metavar="SECONDS", default="20", help="for one check (default 20)")
    parser.add_argument("--prints", action="store_true", help="show on stderr what the file printed")
    add_seed(parser)
    add_json(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what is right, wrong and weak; 1 where something is wrong."""
    need("torch", to="call an attention function")
    if options.output:
        from manyheads.report.files import check_target

        check_target(options.output)
    if options.list:
        emit(_listed(), options)
        return 0
    file, function = _target(options.target)
    from manyheads.check.summary import summary
    from manyheads.check.supervise import Request, supervise

    request = Request(file=file, function=function, options=_wanted(options), timeout=_seconds(options.timeout))
    progress(f"{file} is run as your own code, with your rights, in a process of its own")
    answers = supervise(request)
    if options.prints and answers.printed and sys.stderr is not None:
        sys.stderr.write(answers.printed)
    report = summary(request, answers)
    emit(report, options)
    if not any(report.data[count] for count in ("passed", "failed", "weak")):
        raise UsageError("nothing could be tested: " + "; ".join({o["reason"] for o in answers.outcomes.values()}))
    return 0 if report.data["ok"] else 1


def _target(text: str) -> tuple[str, str]:
    if not text:
        raise UsageError("check: name a function as FILE.py:FUNCTION, or ask for --list")
    file, _, function = text.rpartition(":")
    if not file or os.sep in function or function.endswith(".py"):
        raise UsageError(f"check: {shown(text)} names no function; FILE.py:FUNCTION would be valid")
    if not os.path.isfile(file):
        kind = "is a folder" if os.path.isdir(file) else "does not exist"
        raise CheckpointError(f"{file} {kind}; the path of a Python file would be valid")
    return file, function


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    tolerance = None
    if options.tolerance:
        try:
            tolerance = float(options.tolerance)
        except ValueError:
            raise UsageError(f"--tolerance {shown(options.tolerance)} is not a number; 1e-3 would be valid") from None
    from manyheads.check.features import check_words

    features = [*_split(options.no), *_split(options.require)]
    check_words(layout=options.layout, dtype=options.dtype, features=features)
    if tolerance is not None and not 0 < tolerance < 1:
        raise UsageError(f"--tolerance {options.tolerance} does not lie between 0 and 1; 1e-3 would be valid")
    return {
        "layout": options.layout, "mask": options.mask, "names": _names(options.names), "no": _split(options.no),
        "require": _split(options.require), "only": _split(options.only), "dtype": options.dtype,
        "tolerance": tolerance, "device": options.device, "seed": options.seed,
    }  # fmt: skip


def _names(words: list[str]) -> dict[str, str]:
    names = {}
    for word in _split(words):
        role, _, name = word.partition("=")
        if not role or not name.isidentifier():
            raise UsageError(f"--names {shown(word)} is not ROLE=NAME; q=query,k=key,v=value would be valid")
        names[role] = name
    return names


def _split(words: list[str]) -> list[str]:
    return [part.strip() for word in words for part in word.split(",") if part.strip()]


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise UsageError(f"--timeout {shown(text)} is not a number of seconds above 0; 20 would be valid")
    return seconds


def _listed() -> Report:
    from manyheads.check.catalogue import CASES
    from manyheads.report import Column, Report, Table

    rows = tuple((case.suite, case.name, case.proves, ", ".join(case.needs)) for case in CASES)
    columns = (Column("suite"), Column("check"), Column("what it proves"), Column("needs"))
    checks = [
        {"name": case.name, "suite": case.suite, "proves": case.proves, "needs": list(case.needs),
         "resembles": list(case.resembles)}
        for case in CASES
    ]  # fmt: skip
    return Report(
        f"{len(CASES)} checks", (Table("What is checked?", columns, rows),),
        {"schema": "manyheads.check-list/1", "checks": checks},
    )  # fmt: skip
