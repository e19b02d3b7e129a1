"""One case put to a function: pass, fail with the smallest input that shows it, or not tested and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from manyheads.check.case import Case, Finding, Note, Outcome, Skip
from manyheads.check.problem import Problem, Sizes, smaller
from manyheads.check.spell import call_as_code
from manyheads.check.subject import CallError, Subject
from manyheads.errors import ManyheadsError

__all__ = ["examine"]

MOST_TRIES = 400
MOST_SECONDS = 3.0


def examine(
    subject: Subject, case: Case, *, required: tuple[str, ...] = (), early: Callable[[Finding], None] | None = None
) -> Outcome:
    """What comes of `case`. A feature that is lacking and `required` makes it fail instead of being left out.

    `early` is given a fault as soon as it is found, before it is sought on smaller inputs.
    """
    start = time.perf_counter()
    missing = next((feature for feature in case.needs if feature in subject.adapter.lacks), None)
    if missing is not None:
        reason = subject.adapter.lacks[missing]
        if missing in required:
            return Outcome(case.name, "fail", finding=Finding(f"a function that takes {missing}", reason, "required"))
        return Outcome(case.name, "not tested", reason)
    sizes = subject.fit(case.full)
    found = judge(subject, case, sizes)
    if isinstance(found, Finding):
        if early is not None:
            early(found)
        found = _smallest(subject, case, sizes, found)
    seconds = time.perf_counter() - start
    if isinstance(found, Finding):
        return Outcome(case.name, "fail", finding=found, seconds=seconds)
    if isinstance(found, Skip):
        return Outcome(case.name, "not tested", found.reason, seconds=seconds)
    return Outcome(case.name, "pass", found.text if isinstance(found, Note) else "", seconds=seconds)


def judge(subject: Subject, case: Case, sizes: Sizes) -> Finding | Skip | Note | None:
    """The judgement on one size; an exception of the function is a finding."""
    problem = _problem(subject, case, sizes)
    try:
        found = case.judge(subject, problem)
    except CallError as error:
        shape = (*tuple(problem.q.shape[:3]), problem.v.shape[3])
        return Finding(
            f"an output (batch, heads, queries, dim) = {shape}", str(error), error.kind, line=error.line,
            code=call_as_code(subject, problem),
        )  # fmt: skip
    if isinstance(found, Finding) and not found.code and case.suite != "onnx":
        return replace(found, code=call_as_code(subject, problem))
    return found


def _problem(subject: Subject, case: Case, sizes: Sizes) -> Problem:
    return subject.prepare(case.build(sizes, torch.Generator().manual_seed(subject.seed)))


def _smallest(subject: Subject, case: Case, sizes: Sizes, first: Finding) -> Finding:
    """The same fault on the smallest sizes that show it, sought for a few seconds."""
    suspicious, end = replace(subject, suspect=first.cause), time.perf_counter() + MOST_SECONDS
    tried = 0
    for less in smaller(sizes, subject.fit(case.least), case.valid):
        if tried >= MOST_TRIES or time.perf_counter() > end or less.elements >= sizes.elements:
            break
        tried += 1
        try:
            found = judge(suspicious, case, less)
        except (ManyheadsError, RuntimeError, IndexError):  # a size that the case itself cannot be made in
            continue
        if isinstance(found, Finding) and found.cause == first.cause:
            return found
    return first
