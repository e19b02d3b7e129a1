"""For the tests of check: a function put to all cases in this process, and attention written out in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from manyheads.check.adapter import Adapter
from manyheads.check.case import Outcome
from manyheads.check.catalogue import CASES
from manyheads.check.examine import examine_all
from manyheads.check.guess import Wishes, guess
from manyheads.check.load import load
from manyheads.check.problem import Problem
from manyheads.check.requests import subject_and_wishes
from manyheads.check.subject import Subject
from manyheads.check.targets import adapter_of

EXAMPLES = Path(__file__).parents[2] / "examples/check"
ASKED = {
    "layout": "", "mask": "", "names": {}, "no": [], "require": [], "dtype": "", "tolerance": None, "device": "cpu", "seed": 0,
}  # fmt: skip


def guessed(function: Callable, **wishes: object) -> Subject:
    """The function with the adapter that is guessed for it."""
    wanted = Wishes(**wishes)
    file = function.__code__.co_filename if hasattr(function, "__code__") else ""
    subject = Subject(function, Adapter(), name=function.__name__, file=file, fixed=wanted.fixed)
    return replace(subject, adapter=guess(subject, wanted)[0])


def outcomes(subject: Subject, *names: str) -> dict[str, Outcome]:
    """What comes of the cases named, or of all but ONNX's."""
    kind = "onnx" if hasattr(subject.adapter, "slots") else "projections"
    chosen = [
        case for case in CASES
        if (case.name in names if names else case.suite != "onnx" and kind not in case.needs)
    ]  # fmt: skip
    return {outcome.name: outcome for outcome in examine_all(subject, chosen)}


def failing(subject: Subject) -> list[str]:
    return [name for name, outcome in outcomes(subject).items() if outcome.status == "fail"]


def passing(subject: Subject) -> list[str]:
    return [name for name, outcome in outcomes(subject).items() if outcome.status == "pass"]


def example(file: str, name: str) -> Subject:
    """A function of examples/check with its adapter, as the command makes it."""
    return named(str(EXAMPLES / file), name)


def named(path: str, name: str) -> Subject:
    """What stands in a file under a name, with its adapter, as the command makes it."""
    subject, wishes, _ = subject_and_wishes(load(path, name), {**ASKED, "file": path, "function": name})
    return replace(subject, adapter=adapter_of(subject, wishes)[0])


def by_loops(problem: Problem) -> torch.Tensor:
    """Attention in Python floats, one number at a time: nothing shared with the reference."""
    q, k, v = (x.double().tolist() for x in (problem.q, problem.k, problem.v))
    (b, h, t, d), kv_heads, s, e = problem.q.shape, problem.k.shape[1], problem.k.shape[2], problem.v.shape[3]
    out = torch.zeros(b, h, t, e, dtype=torch.float64)
    for sample in range(b):
        for head in range(h):
            read = head * kv_heads // h
            for query in range(t):
                at = s - t + query
                logits = []
                for key in range(s):
                    if not _visible(problem, sample, head, query, at, key):
                        continue
                    logit = sum(q[sample][head][query][i] * k[sample][read][key][i] for i in range(d))
                    logit *= 1 / math.sqrt(d) if problem.scale is None else problem.scale
                    if problem.softcap is not None:
                        logit = problem.softcap * math.tanh(logit / problem.softcap)
                    logits.append((key, logit + _bias(problem, sample, head, query, key)))
                logits = [(key, logit) for key, logit in logits if logit != -math.inf]
                sink = [] if problem.sinks is None else [problem.sinks[head].item()]
                top = max([logit for _, logit in logits] + sink, default=0.0)
                total = sum(math.exp(logit - top) for _, logit in logits)
                if problem.sinks is not None:
                    total += math.exp(problem.sinks[head].item() - top)
                for key, logit in logits:
                    share = math.exp(logit - top) / total
                    for i in range(e):
                        out[sample, head, query, i] += share * v[sample][read][key][i]
    return out


def _visible(problem: Problem, sample: int, head: int, query: int, at: int, key: int) -> bool:
    if (problem.causal or problem.window is not None) and key > at:
        return False
    if problem.window is not None and at - key >= problem.window:
        return False
    if problem.keep is not None and not problem.keep[sample, key]:
        return False
    return problem.visible is None or bool(_at(problem.visible, sample, head)[query, key])


def _bias(problem: Problem, sample: int, head: int, query: int, key: int) -> float:
    return 0.0 if problem.bias is None else _at(problem.bias, sample, head)[query, key].item()


def _at(mask: torch.Tensor, sample: int, head: int) -> torch.Tensor:
    return mask[sample if mask.shape[0] > 1 else 0, head if mask.shape[1] > 1 else 0]
