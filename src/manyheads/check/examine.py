"""One case put to a function: pass, weak or wrong with the smallest input that shows it, or not tested and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch

from manyheads.check.case import Case, Finding, Note, Outcome, Skip
from manyheads.check.problem import Problem, Sizes, smaller
from manyheads.check.subject import CallError, Subject, UnfitError
from manyheads.errors import ManyheadsError

__all__ = ["examine", "examine_all"]

MOST_TRIES = 400
MOST_SECONDS = 1.5  # for one fault
MOST_SECONDS_IN_ALL = 6.0


def examine_all(
    subject: Subject,
    cases: Iterable[Case],
    *,
    required: tuple[str, ...] = (),
    start: Callable[[Case], None] | None = None,
    early: Callable[[Outcome], None] | None = None,
) -> Iterator[Outcome]:
    """What comes of each case; a fault that one has found is the first that the next ones think of."""
    left = MOST_SECONDS_IN_ALL
    for case in cases:
        if start is not None:
            start(case)
        torch.manual_seed(subject.seed)
        outcome = examine(subject, case, required=required, early=early, seconds=left)
        left -= outcome.seconds if outcome.finding is not None else 0.0
        if outcome.finding is not None and outcome.finding.cause not in subject.suspects:
            subject = replace(subject, suspects=(*subject.suspects, outcome.finding.cause))
        yield outcome


def examine(
    subject: Subject,
    case: Case,
    *,
    required: tuple[str, ...] = (),
    early: Callable[[Outcome], None] | None = None,
    seconds: float = MOST_SECONDS_IN_ALL,
) -> Outcome:
    """What comes of `case`. What is `required` makes it fail where it is lacking, instead of being left out, and where it
    is weak.

    `early` is given what came of it as soon as a fault is found, before it is sought on smaller inputs, which takes as many
    `seconds` at most.
    """
    start = time.perf_counter()
    missing = next((feature for feature in case.needs if feature in subject.adapter.lacks), None)
    if missing is not None:
        reason = subject.adapter.lacks[missing]
        if missing in required:
            return Outcome(case.name, "fail", finding=Finding(f"a function that takes {missing}", reason, "required"))
        return Outcome(case.name, "not tested", reason)
    found, sizes = _first_fault(subject, case)
    if isinstance(found, Finding):
        if early is not None:
            early(_graded(case, found, required))
        found = _smallest(subject, case, sizes, found, seconds)
    seconds = time.perf_counter() - start
    if isinstance(found, Finding):
        return replace(_graded(case, found, required), seconds=seconds)
    if isinstance(found, Skip):
        return Outcome(case.name, "not tested", found.reason, seconds=seconds)
    return Outcome(case.name, "pass", found.text if isinstance(found, Note) else "", seconds=seconds)


def _first_fault(subject: Subject, case: Case) -> tuple[Finding | Skip | Note | None, Sizes]:
    """The judgement on the sizes of the case, and the sizes that show it: a fault where there is one, else a weakness."""
    full = _fit(subject, case, case.full)
    found = judge(subject, case, full)
    if isinstance(found, Skip) or _is_fault(found):
        return found, full
    weak, at = found, full
    for sizes in dict.fromkeys(_fit(subject, case, sizes) for sizes in case.also):
        another = judge(subject, case, sizes)
        if _is_fault(another):
            return another, sizes
        if isinstance(another, Finding) and not isinstance(weak, Finding):
            weak, at = another, sizes
    return weak, at


def _fit(subject: Subject, case: Case, sizes: Sizes) -> Sizes:
    return subject.fit(sizes, projected="projections" in case.needs)


def _is_fault(found: Finding | Skip | Note | None) -> bool:
    return isinstance(found, Finding) and not found.demand


def _graded(case: Case, finding: Finding, required: tuple[str, ...]) -> Outcome:
    """Weak where it is asked for under the name of a feature, wrong where it is a fault or the feature is required."""
    is_weak = bool(finding.demand) and finding.demand not in required
    return Outcome(case.name, "weak" if is_weak else "fail", finding=finding)


def judge(subject: Subject, case: Case, sizes: Sizes) -> Finding | Skip | Note | None:
    """The judgement on one size; an exception of the function is a finding."""
    problem = _problem(subject, case, sizes)
    try:
        found = case.judge(subject, problem)
    except UnfitError as error:
        return Skip(str(error))
    except CallError as error:
        shape = (*tuple(problem.q.shape[:3]), problem.v.shape[3])
        found = Finding(
            f"an output (batch, heads, queries, dim) = {shape}", str(error), error.kind, line=error.line,
            code=subject.code(problem),
        )  # fmt: skip
    if not isinstance(found, Finding):
        return found
    code = found.code or ("" if case.suite == "onnx" else subject.code(problem))
    return replace(found, code=code, demand=found.demand or case.demand)


def _problem(subject: Subject, case: Case, sizes: Sizes) -> Problem:
    return subject.prepare(case.build(sizes, torch.Generator().manual_seed(subject.seed)))


def _smallest(subject: Subject, case: Case, sizes: Sizes, first: Finding, seconds: float) -> Finding:
    """The same fault on the smallest sizes that show it, sought for a second or two."""
    suspicious, end = replace(subject, suspects=(first.cause, *subject.suspects)), min(seconds, MOST_SECONDS)
    end += time.perf_counter()
    tried = 0
    for less in smaller(sizes, _fit(subject, case, case.least), case.valid):
        if tried >= MOST_TRIES or time.perf_counter() > end or less.elements >= sizes.elements:
            break
        tried += 1
        try:
            found = judge(suspicious, case, less)
        except (ManyheadsError, RuntimeError, IndexError):  # a size that the case itself cannot be made in
            continue
        if isinstance(found, Finding) and (found.cause, found.demand) == (first.cause, first.demand):
            return found
    return first
