"""`manyheads check FILE.py:FUNCTION`: our suites turned on the user's own attention function."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from manyheads.cli import quantities
from manyheads.cli.common import UsageError, emit, in_options, need, progress
from manyheads.cli.options import DEVICE, DTYPE, JSON, OUTPUT, SEED, Option, add
from manyheads.errors import CheckpointError
from manyheads.quoting import shown

if TYPE_CHECKING:
    from manyheads.report import Report

__all__ = ["configure", "run"]

_OPTIONS = (
    Option("--layout", "of q, k, v: bhtd, bthd, btd, htd, thd, td (else tried)", "AXES", default=""),
    Option(
        "--mask", "what a mask's True does: visible, blocked; or additive numbers (else tried)", "WAY", default="",
        choices=("visible", "blocked", "additive"),
    ),
    Option("--names", "q=query,causal=is_causal,...", "ROLE=NAME", kind="many"),
    Option("--no", "do not test window, bfloat16, ...", "FEATURE", kind="many", tried=("--skip", "--exclude")),
    Option(
        "--require", "a fault where it takes no mask, window, ... or is weak in it: float16, empty-rows, ...", "FEATURE",
        kind="many",
    ),
    Option("--only", "these checks or suites alone", "CHECK", kind="many", tried=("-k", "--check", "--suite")),
    Option("--list", "every check, and what it proves", kind="switch"),
    replace(DTYPE, help="values in fp32, fp64, bf16, fp16 (default fp32)", read=None, default=""),
    Option(
        "--tolerance", "how far off, relative to 1 + the largest (default: the dtype's)", "X",
        quantities.above_zero("not a number between 0 and 1; valid: 1e-3", below=1.0), tried=("--atol", "--rtol"),
    ),
    replace(DEVICE, help="where the tensors are: cpu, cuda, mps (default %(default)s)"),
    Option(
        "--timeout", "for one check (default %(default)s)", "SECONDS",
        quantities.above_zero("not a number of seconds from 0 to 86,400; valid: 20", below=86_401.0), "20",
        tried=("--seconds",),
    ),
    Option("--prints", "show on stderr what the file printed", kind="switch", parameter="printed"),
    SEED,
    JSON,
    OUTPUT,
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "target",
        metavar="FILE.py:FUNCTION",
        nargs="?",
        default="",
        help="a function of q, k, v, one of x and W_q, W_k, W_v, W_o, or a class; FILE.py is run as your code",
    )
    for option in _OPTIONS:
        add(parser, option)


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

    request = Request(file=file, function=function, options=_wanted(options), timeout=options.timeout)
    progress(f"{file} is run as your own code, with your rights, in a process of its own")
    answers = supervise(request)
    if options.prints and answers.printed and sys.stderr is not None:
        sys.stderr.write(answers.printed)
    report = in_options(summary(request, answers), options, cells=True)
    emit(report, options)
    if not any(report.data[count] for count in ("passed", "failed", "weak")):
        reasons = "; ".join({each["reason"] for each in answers.outcomes.values()})
        raise UsageError(f"nothing could be tested: {options.spoken(reasons)}")
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
    from manyheads.check.features import check_words

    features = [*_split(options.no), *_split(options.require)]
    check_words(layout=options.layout, dtype=options.dtype, features=features)
    return {
        "layout": options.layout, "mask": options.mask, "names": _names(options.names), "no": _split(options.no),
        "require": _split(options.require), "only": _split(options.only), "dtype": options.dtype,
        "tolerance": options.tolerance, "device": options.device, "seed": options.seed,
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
