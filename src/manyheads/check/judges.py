"""Judges that hold an answer against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from manyheads.check.case import Finding, Judge, Note, Skip
from manyheads.check.problem import Problem, seen
from manyheads.check.spell import place, row, seen_keys
from manyheads.check.subject import CallError, Subject
from manyheads.check.twins import Twin

__all__ = ["differs", "explained", "may_refuse", "refuses", "sees", "shortest", "values", "weights"]


def values(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """The output is the reference's."""
    return differs(subject, problem, subject.call(problem))


def sees(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """The same where values are one-hot, so that a row of the output is the weights of the keys."""
    return differs(subject, problem, subject.call(problem), keys=True)


def may_refuse(feature: str, judge: Judge) -> Judge:
    """`judge`, where an error of the function is no wrong answer: it is weak under the name of `feature`."""

    def judged(subject: Subject, problem: Problem) -> Finding | Skip | Note | None:
        try:
            return judge(subject, problem)
        except CallError as error:
            if error.kind == "shape":
                raise
            return Finding("an answer", str(error), error.kind, line=error.line, demand=feature)

    return judged


def differs(subject: Subject, problem: Problem, found: Tensor, *, keys: bool = False) -> Finding | None:
    """None where `found` is right; else the first row that is not, and the fault that explains the whole.

    Softmax over nothing is not defined: where only rows that see nothing differ, and no sink is there to see, it is a
    weakness.
    """
    expected = subject.answer(problem)
    allowed = subject.allowed(expected)
    found = found.detach().double()
    off = ~torch.isclose(found, expected.detach(), rtol=0.0, atol=allowed)
    if not bool(off.any()):
        return None
    index, demand = _first(subject, problem, off)

    def say(values: Tensor) -> str:
        return seen_keys(values, allowed) if keys else row(values)

    twin = subject.twin(problem, found, allowed) or _without_masks(subject, problem)
    demand = demand or _demand_of(subject, twin)
    at = place(index, tuple(expected.shape))
    cause, says = (twin.name, twin.says) if twin else (shortest(found), _unexplained(found))
    if not cause and not demand and not keys:
        cause, says = _located(subject, problem)
    return Finding(
        f"{at}: {say(expected[index].detach())}",
        f"{at}: {say(found[index])}",
        cause,
        says,
        resembles=twin.resembles if twin else (),
        demand=demand,
    )


def _located(subject: Subject, problem: Problem) -> tuple[str, str]:
    """Of a fault without a name, the step in which it is, as far as easier problems tell."""
    plainly = replace(problem, visible=None, keep=None, bias=None, causal=False, window=None)
    plainly = subject.prepare(plainly)
    steps: tuple[tuple[str, str, Callable[[], Problem]], ...] = (
        ("in the masks", "without mask, bias and causality it is right", lambda: plainly),
        ("in the scores", "with scores that are all equal it is right: the fault is in q k^T, its scale, or softmax",
         lambda: subject.with_equal_scores(plainly)),
    )  # fmt: skip
    for cause, says, easier in steps:
        try:
            asked = easier()
            right = subject.answer(asked)
            if torch.allclose(subject.call(asked).double(), right, rtol=0.0, atol=subject.allowed(right)):
                return cause, says
        except CallError:
            continue
    around = ", the cut into heads, the join or W_o" if subject.joins_heads else ""
    return (
        "in the values",
        f"with scores that are all equal it is wrong, too: the fault is in the weights, the values{around}",
    )


def _demand_of(subject: Subject, twin: Twin | None) -> str:
    """A frontier at the top-left corner is torch's convention, and a module hands its cache on in ways of its own."""
    return "causal-cross" if twin is not None and twin.name == "causal top-left" and subject.joins_heads else ""


def _without_masks(subject: Subject, problem: Problem) -> Twin | None:
    """A fault that was found already and is there without the masks as well: what they do on top of it is not known."""
    if not subject.suspects or (problem.visible is None and problem.keep is None):
        return None
    plainly = replace(problem, visible=None, keep=None)
    try:
        found = subject.call(plainly)
    except CallError:
        return None
    twin = subject.twin(plainly, found, subject.allowed(subject.answer(plainly)))
    return twin if twin is not None and twin.name in subject.suspects else None


def _first(subject: Subject, problem: Problem, off: Tensor) -> tuple[tuple[int, ...], str]:
    """The first row (b, h, t) with a number that is off, and "": a fault; or "empty-rows" where all such rows see nothing."""
    visible = seen(problem)
    if problem.bias is not None:
        visible = visible & (problem.bias.cpu() > -torch.inf)
    defined = visible.any(-1) if problem.sinks is None else torch.ones(visible.shape[:-1], dtype=torch.bool)
    if subject.joins_heads:  # what one head gives is in all numbers of a token
        defined = defined.all(1, keepdim=True)
    faults = off & defined[..., None]
    demand = "" if bool(faults.any()) else "empty-rows"
    return tuple((off if demand else faults).nonzero()[0][:3].tolist()), demand


def explained(subject: Subject, problem: Problem, finding: Finding) -> Finding:
    """`finding` with the fault that a twin shows on the same problem, where one does."""
    found = subject.call(problem).double()
    twin = subject.twin(problem, found, subject.allowed(subject.answer(problem)))
    if twin is None:
        return finding
    demand = finding.demand or _demand_of(subject, twin)
    return replace(finding, cause=twin.name, explanation=twin.says, resembles=twin.resembles, demand=demand)


def shortest(found: Tensor) -> str:
    """The kind of a fault that no twin has."""
    return "" if bool(found.isfinite().all()) else "not finite"


def _unexplained(found: Tensor) -> str:
    bad = int((~found.isfinite()).sum())
    return f"{bad} of {found.numel()} numbers are NaN or infinite" if bad else ""


def weights(subject: Subject, problem: Problem) -> Finding | Skip | Note | None:
    """The returned weights are the probabilities of every head, and the output is the same as without them."""
    out, found = subject.weights(problem)
    wrong = differs(subject, problem, out)
    if wrong is not None and not wrong.demand:
        return wrong
    expected = subject.answer_weights(problem)
    found = found.detach()
    if subject.joins_heads and found.shape == expected.mean(1).shape:  # averaged, as torch's module gives them
        found, expected = found[:, None], expected.mean(1, keepdim=True)
    found = _with_all_axes(found, expected)
    if found.shape != expected.shape:
        average = expected.mean(1)
        averaged = found.shape == average.shape and torch.allclose(
            found.double(), average, atol=subject.allowed(average)
        )
        return Finding(
            f"weights of shape (batch, heads, queries, keys) = {tuple(expected.shape)}",
            f"weights of shape {tuple(found.shape)}",
            "weights averaged" if averaged else "weights shape",
            "they are averaged over the heads" if averaged else "",
        )
    allowed = subject.allowed(expected)
    off = ~torch.isclose(found.double(), expected, rtol=0.0, atol=allowed)
    if not bool(off.any()):
        return wrong or (Note("averaged over the heads") if expected.shape[1] != problem.q.shape[1] else None)
    index, demand = _first(subject, problem, off)
    if wrong is not None and demand:
        return wrong
    at = place(index, tuple(expected.shape))
    total = found[index].sum().item()
    return Finding(
        f"{at}: weights {row(expected[index])}, total {expected[index].sum().item():.4g}",
        f"{at}: weights {row(found[index])}, total {total:.4g}",
        "weights",
        "the output is right and the returned weights are not those that made it",
        demand=demand,
    )


def _with_all_axes(found: Tensor, expected: Tensor) -> Tensor:
    """Axes of one sequence or one head that a layout leaves out."""
    while found.dim() < 4 and expected.shape[4 - found.dim() - 1] == 1 and found.dim() >= 2:
        found = found[:, None] if found.dim() == 3 and expected.shape[1] == 1 else found[None]
    return found


def refuses(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """The function raises an error of its own instead of answering."""
    try:
        out = subject.call(problem)
    except CallError as error:
        if error.kind != "shape":
            return None
        return Finding("an error", str(error), "accepted")
    heads, kv_heads = problem.q.shape[1], problem.k.shape[1]
    return Finding(
        f"an error that names {heads} query heads and {kv_heads} key/value heads",
        f"an output of shape {tuple(out.shape)}",
        "accepted",
        f"{heads} query heads cannot share {kv_heads} key/value heads evenly; a silent answer hides a wrong configuration",
    )
