"""Causality: the frontier with and without a cache, and no look into the future."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from manyheads.check import judges
from manyheads.check.case import Case, Finding, Skip, self_attention
from manyheads.check.problem import Problem, Sizes
from manyheads.check.spell import call_as_code, row
from manyheads.check.subject import Subject
from manyheads.check.suites.basics import FULL, LONG, plain
from manyheads.check.suites.masks import one_hot, rectangle, some_mask, square

__all__ = ["CASES"]


_STEPS_DIFFER = "steps differ"


def _causal(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(one_hot(sizes, generator), causal=True)


def _causal_values(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), causal=True)


def _with_mask(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = _causal(sizes, generator)
    mask = some_mask(generator, 1, 1, sizes.queries, sizes.keys)
    mask[..., 0] = True  # so that no row is empty: that is another case
    return replace(problem, visible=mask)


def moved(subject: Subject, problem: Problem, token: int) -> Tensor:
    """Whether each output (b, h, t) changes when key and value of `token` do."""
    k, v = problem.k.clone(), problem.v.clone()
    k[:, :, token] += 1.5
    v[:, :, token] += 3.0
    before, after = subject.call(problem), subject.call(replace(problem, k=k, v=v))
    same = torch.isclose(before.double(), after.double(), rtol=1e-6, atol=1e-6, equal_nan=True)
    return ~same.all(-1)


def future(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """No output moves when a later token does."""
    problem, offset = subject.prepare(problem), problem.k.shape[2] - problem.q.shape[2]
    for token in range(problem.k.shape[2] - 1, 0, -1):
        for query in moved(subject, problem, token).any(0).any(0).nonzero().flatten().tolist():
            if query + offset < token:
                return judges.explained(subject, problem, Finding(
                    f"the output of token {query + offset} stays as it is when token {token} changes",
                    f"it moves: token {query + offset} sees token {token}",
                    "sees the future",
                    "what comes later decides what came before: training looks too good, and generation differs from it",
                ))  # fmt: skip
    return None


def future_with_weights(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """With weights asked for, everything above the diagonal is exactly zero and the output is the same."""
    problem = subject.prepare(problem)
    out, found = subject.weights(problem)
    while found.dim() < 4:
        found = found[None]
    above = torch.ones(found.shape[-2:], dtype=torch.bool).triu(1)
    if bool(found[..., above].any()):
        return Finding(
            "weights of exactly 0 above the diagonal", f"a weight of {found[..., above].max().item():.4g} there",
            "sees the future", "the causal flag gets lost on the way that returns weights",
        )  # fmt: skip
    return judges.differs(subject, problem, out)


def steps(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """One call for all tokens, and a call a token with the keys so far: the same rows, by the function's own values."""
    problem = subject.prepare(problem)
    whole = subject.call(problem).double()
    for token in range(problem.q.shape[2]):
        so_far = slice(0, token + 1)
        step = replace(
            problem, q=problem.q[:, :, token : token + 1], k=problem.k[:, :, so_far], v=problem.v[:, :, so_far]
        )
        one = subject.call(step).double()
        if not torch.allclose(one[:, :, 0], whole[:, :, token], rtol=0.0, atol=subject.allowed(whole), equal_nan=True):
            finding = Finding(
                f"token {token} alone, with keys 0 to {token}: as in the call with all tokens, {row(whole[0, 0, token])}",
                row(one[0, 0, 0]),
                _STEPS_DIFFER,
                "one new token with a cache must give what the whole sequence gave: the query is the last position, not the "
                "first",
                call_as_code(subject, step),
            )
            told = judges.explained(subject, step, finding)
            return told if told.cause != _STEPS_DIFFER else judges.explained(subject, problem, finding)
    return None


_CACHE = ("causal", "cross", "causal-cross")
_SQUARES = tuple(
    Sizes(heads=heads, kv_heads=heads, queries=n, keys=n, dim=n, value_dim=n) for heads in (2, 1) for n in (3, 2, 1)
)
_GROWN = tuple(
    Sizes(queries=queries, keys=keys, dim=keys, value_dim=keys) for keys in (5, 4, 3, 2) for queries in range(1, keys)
)

CASES = (
    Case(
        name="causal", suite="causality", build=_causal, judge=judges.sees, needs=("causal",), valid=square, also=_SQUARES,
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=4, dim=4, value_dim=4),
        proves="query i sees keys 0 to i, itself included",
    ),
    Case(
        name="causal-values", suite="causality", build=_causal_values, judge=judges.values, needs=("causal",), full=FULL,
        valid=self_attention, also=LONG, proves="the weights of what is seen add up to 1",
    ),
    Case(
        name="causal-cache", suite="causality", build=_causal, needs=_CACHE, valid=rectangle, also=_GROWN,
        judge=judges.may_refuse("causal-cross", judges.sees),
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=3, keys=6, dim=6, value_dim=6),
        least=Sizes(queries=1, keys=2, dim=2, value_dim=2),
        proves="with more keys than queries (a cache) the queries are the last tokens",
        resembles=("pytorch/pytorch#108108",),
    ),
    Case(
        name="causal-steps", suite="causality", build=_causal_values, needs=_CACHE, full=FULL,
        judge=judges.may_refuse("causal-cross", steps), valid=self_attention, proves="a token at a time gives what the whole sequence gives",
        resembles=("pytorch/pytorch#108108", "keras-team/keras-hub#1544"),
    ),
    Case(
        name="causal-more-queries", suite="causality", build=_causal, needs=_CACHE,
        judge=judges.may_refuse("causal-cross", judges.sees),
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=2, dim=2, value_dim=2), least=Sizes(queries=2),
        valid=lambda s: s.heads == s.kv_heads and s.queries > s.keys == s.dim == s.value_dim,
        proves="with fewer keys than queries the first queries see nothing and give zeros",
        resembles=("pytorch/pytorch#108108",),
    ),
    Case(
        name="causal-mask", suite="causality", build=_with_mask, judge=judges.sees, needs=("causal", "mask", "causal-mask"),
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=4, dim=4, value_dim=4), valid=square,
        proves="a mask and the causal flag hold together", resembles=("pytorch/pytorch#63271",),
    ),
    Case(
        name="future", suite="causality", build=_causal_values, judge=future, needs=("causal",), full=FULL,
        valid=self_attention, least=Sizes(queries=2, keys=2), proves="changing a token moves no earlier output",
        resembles=("keras-team/keras#23038",),
    ),
    Case(
        name="future-weights", suite="causality", build=_causal_values, judge=future_with_weights, full=FULL,
        needs=("causal", "weights"), valid=self_attention,
        proves="causal also where weights are returned: they are exactly 0 above the diagonal",
        resembles=("keras-team/keras#23038",),
    ),
)  # fmt: skip
