"""Caches: a token at a time, and a few at a time, give what the whole sequence gives."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyheads.check.case import Case, Finding, Skip, self_attention
from manyheads.check.multihead.problem import Multihead, natural
from manyheads.check.multihead.steps import by_steps, explained_by_steps
from manyheads.check.multihead.subject import MultiheadSubject
from manyheads.check.problem import Problem, Sizes
from manyheads.check.spell import place, row
from manyheads.check.subject import Subject

__all__ = ["CASES"]


_UNKNOWN = "steps differ"


def _causal(sizes: Sizes, generator: torch.Generator) -> Multihead:
    return replace(natural(sizes, generator), causal=True)


def steps(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """A token at a time."""
    return _pieces(subject, problem, [1] * problem.q.shape[2])


def chunks(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """A prompt of half the tokens, then one token at a time."""
    tokens = problem.q.shape[2]
    prompt = (tokens + 1) // 2
    return _pieces(subject, problem, [prompt] + [1] * (tokens - prompt))


def again(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """A second sequence, with a new cache, as if there had been none before."""
    assert isinstance(subject, MultiheadSubject)
    problem = subject.prepare(problem)
    assert isinstance(problem, Multihead)
    sizes = [1] * problem.q.shape[2]
    subject = replace(subject, made={})
    first = by_steps(subject, problem, sizes, fresh=False)
    second = by_steps(subject, problem, sizes, fresh=False)
    if torch.allclose(first.double(), second.double(), rtol=0.0, atol=subject.allowed(first), equal_nan=True):
        return None
    return Finding(
        f"the second time as the first: {row(first[0, 0, -1])}", row(second[0, 0, -1]), "cache not fresh",
        "the cache of one sequence is there in the next one",
    )  # fmt: skip


def _pieces(subject: Subject, problem: Problem, sizes: list[int]) -> Finding | Skip | None:
    assert isinstance(subject, MultiheadSubject)
    problem = subject.prepare(problem)
    assert isinstance(problem, Multihead)
    right, found = subject.answer(problem), by_steps(subject, problem, sizes).double()
    allowed = subject.allowed(right)
    off = ~torch.isclose(found, right, rtol=0.0, atol=allowed)
    if not bool(off.any()):
        return None
    index = tuple(off.nonzero()[0][:3].tolist())
    at = place(index, tuple(right.shape))
    cause, says = explained_by_steps(problem, found, allowed, sizes)
    twin = subject.twin(problem, found, allowed) if cause in (_UNKNOWN, "causal ignored") else None
    if twin is not None:  # the whole call has the same fault: the cache has none
        cause, says = twin.name, twin.says
    told = ", ".join(map(str, sizes))
    return Finding(
        f"{at}, with {told} tokens a call: as in one call for all, {row(right[index])}",
        f"{at}: {row(found[index])}",
        cause,
        says,
    )


_FULL = Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=4, dim=2, value_dim=2)
_NEEDS = ("projections", "cache")

CASES = (
    Case(
        name="cache-steps", suite="cache", build=_causal, judge=steps, full=_FULL, least=Sizes(queries=2, keys=2), needs=_NEEDS,
        valid=self_attention, proves="a token at a time with the cache gives what the whole sequence gives",
        resembles=("keras-team/keras-hub#1544",),
    ),
    Case(
        name="cache-prompt", suite="cache", build=_causal, judge=chunks, full=_FULL, least=Sizes(queries=2, keys=2),
        needs=(*_NEEDS, "causal"), valid=self_attention, also=(replace(_FULL, queries=5, keys=5), replace(_FULL, batch=1, queries=3, keys=3)),
        proves="a prompt, then a token at a time",
    ),
    Case(
        name="cache-grouped", suite="cache", build=_causal, judge=steps, needs=(*_NEEDS, "grouped"),
        full=Sizes(batch=2, heads=4, kv_heads=2, queries=3, keys=3, dim=2, value_dim=2), least=Sizes(heads=2, queries=2, keys=2),
        valid=lambda s: s.queries == s.keys and s.dim == s.value_dim and s.kv_heads < s.heads and s.heads % s.kv_heads == 0,
        proves="the cache of fewer key/value heads",
    ),
    Case(
        name="cache-fresh", suite="cache", build=_causal, judge=again, full=_FULL, least=Sizes(queries=2, keys=2), needs=_NEEDS,
        valid=self_attention, proves="a new sequence does not meet the cache of the last one",
    ),
)  # fmt: skip
