"""ONNX's 93 cases of its operator `Attention`: somebody else's inputs and somebody else's answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from manyheads.check.case import Case, Finding, Note, Skip
from manyheads.check.onnx_cases import OnnxCase, collect
from manyheads.check.problem import Problem, Sizes
from manyheads.check.spell import place, row
from manyheads.check.subject import CallError, Subject
from manyheads.check.suites.basics import plain
from manyheads.check.twins import diagnose

__all__ = ["CASES"]

# (relative, absolute): onnx's own, and what rounding to the format allows
TOLERANCES = {torch.float32: (1e-3, 1e-5), torch.float16: (1e-3, 4e-3), torch.bfloat16: (1e-3, 2e-2)}


def onnx(subject: Subject, problem: Problem) -> Finding | Skip | Note | None:  # noqa: ARG001 onnx brings its own
    """Every case that the function can take."""
    left: Counter[str] = Counter()
    wrong: list[tuple[str, Finding]] = []
    cases = collect()
    for case in cases:
        reason = cannot_take(subject, case.problem)
        if reason:
            left[reason] += 1
            continue
        finding = _differs(subject, case)
        if finding is not None:
            wrong.append((case.name, finding))
    taken = len(cases) - left.total()
    rest = "; ".join(f"{count} {reason}" for reason, count in left.most_common())
    if not taken:
        return Skip(f"none of ONNX's {len(cases)} cases can be put to it: {rest}")
    if wrong:
        first = wrong[0][1]
        names = ", ".join(name for name, _ in wrong[:5]) + (", ..." if len(wrong) > 5 else "")
        return replace(first, found=f"{first.found}; {len(wrong)} of {taken} cases differ: {names}")
    return Note(f"{taken} of {taken} cases that it can take" + (f" (not: {rest})" if rest else ""))


def cannot_take(subject: Subject, problem: Problem) -> str:
    """Why a problem cannot be put to the function, or ""."""
    for feature in needed(problem):
        if feature in subject.adapter.lacks:
            return f"need {feature}"
    if subject.adapter.causal == "always" and not problem.causal:
        return "are not causal"
    fitted = subject.fit(Sizes(batch=problem.q.shape[0], heads=problem.q.shape[1]))
    return "need several heads or sequences" if (fitted.batch, fitted.heads) != tuple(problem.q.shape[:2]) else ""


def needed(problem: Problem) -> list[str]:
    """The features without which a problem cannot be put to a function."""
    (b, h, t, d), kv_heads, e = problem.q.shape, problem.k.shape[1], problem.v.shape[3]
    parts = {
        "cross": t != problem.k.shape[2],
        "mask": problem.visible is not None,
        "bias": problem.bias is not None,
        "causal": problem.causal,
        "causal-mask": problem.causal and (problem.visible is not None or problem.bias is not None),
        "scale": problem.scale is not None,
        "softcap": problem.softcap is not None,
        "grouped": 1 < kv_heads < h,
        "multi-query": kv_heads == 1 < h,
        "value-width": d != e,
        "bfloat16": problem.q.dtype == torch.bfloat16,
        "float16": problem.q.dtype == torch.float16,
    }
    for mask in (problem.visible, problem.bias):
        if mask is not None:
            parts["mask-samples"] = parts.get("mask-samples", False) or mask.shape[0] == b > 1
            parts["mask-heads"] = parts.get("mask-heads", False) or mask.shape[1] == h > 1
    return [feature for feature, is_needed in parts.items() if is_needed]


def _differs(subject: Subject, case: OnnxCase) -> Finding | None:
    subject = replace(subject, dtype=case.problem.q.dtype)
    problem = subject.prepare(case.problem)
    try:
        found = subject.call(problem).double()
    except CallError as error:
        return Finding(f"{case.name}: an output", f"{case.name}: {error}", error.kind, line=error.line)
    relative, absolute = TOLERANCES[subject.dtype]
    expected = case.expected.double()
    off = ~torch.isclose(found, expected, rtol=relative, atol=absolute, equal_nan=True)
    if not bool(off.any()):
        return None
    index = tuple(off.nonzero()[0][:3].tolist())
    at = place(index, tuple(expected.shape))
    twin = diagnose(problem, found, absolute + relative * expected.abs().max().item())
    return Finding(
        f"{case.name}, {at}: {row(expected[index])}", f"{case.name}, {at}: {row(found[index])}",
        twin.name if twin else "onnx", twin.says if twin else "", resembles=twin.resembles if twin else (),
    )  # fmt: skip


CASES = (
    Case(
        name="onnx", suite="onnx", build=plain, judge=onnx, full=Sizes(), least=Sizes(), needs=("onnx",),
        proves="the answers of ONNX's reference to the cases of its operator Attention",
        resembles=("onnx/onnx#7274",),
    ),
)  # fmt: skip
