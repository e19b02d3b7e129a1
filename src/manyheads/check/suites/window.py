"""Sliding windows: a window of W is W keys, the query's own token among them."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyheads.check import judges
from manyheads.check.case import Case, Finding, Skip, self_attention
from manyheads.check.problem import Problem, Sizes
from manyheads.check.subject import Subject
from manyheads.check.suites.basics import plain
from manyheads.check.suites.causal import moved
from manyheads.check.suites.masks import one_hot, rectangle, square

__all__ = ["CASES"]


def _window(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(one_hot(sizes, generator), causal=True, window=sizes.window)


def _one(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(one_hot(sizes, generator), causal=True, window=1)


def _wide(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(one_hot(sizes, generator), causal=True, window=sizes.keys + 2)


def _values(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), causal=True, window=sizes.window)


def past(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """No output moves when a token before its window does."""
    problem, window = subject.prepare(problem), problem.window or 1
    for token in range(problem.k.shape[2]):
        for query in moved(subject, problem, token).any(0).any(0).nonzero().flatten().tolist():
            if query - token >= window:
                return judges.explained(subject, problem, Finding(
                    f"with a window of {window}, the output of token {query} stays as it is when token {token} changes",
                    f"it moves: token {query} sees token {token}, {query - token} back",
                    "sees past its window",
                    f"a window of W reaches W - 1 tokens back: {window} keys, the query's own token among them",
                ))  # fmt: skip
    return None


_LEAST = Sizes(queries=2, keys=2, dim=2, value_dim=2)

# every window up to one more than the keys: one that just holds them all, one that just does not, a single query
_SQUARES = tuple(
    Sizes(queries=n, keys=n, dim=n, value_dim=n, window=w) for n in (5, 4, 3, 2, 1) for w in range(1, n + 2)
)
_SQUARES += tuple(Sizes(queries=67, keys=67, dim=67, value_dim=67, window=w) for w in (17, 64))
_GROWN = tuple(
    Sizes(queries=queries, keys=keys, dim=keys, value_dim=keys, window=w)
    for keys in (5, 4, 3, 2) for queries in range(1, keys) for w in range(1, keys + 2)
)  # fmt: skip

CASES = (
    Case(
        name="window", suite="windows", build=_window, judge=judges.sees, needs=("window",), valid=square, least=_LEAST,
        also=_SQUARES,
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=6, keys=6, dim=6, value_dim=6, window=3),
        proves="6 tokens and a window of 3: the queries see 1, 2, 3, 3, 3, 3 keys",
        resembles=("huggingface/transformers#26792", "huggingface/transformers#29623"),
    ),
    Case(
        name="window-cache", suite="windows", build=_window, valid=rectangle, also=_GROWN,
        judge=judges.may_refuse("causal-cross", judges.sees), needs=("window", "cross", "causal-cross"),
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=2, keys=6, dim=6, value_dim=6, window=3), least=_LEAST,
        proves="the window moves with the last tokens when there are more keys than queries",
        resembles=("Lightning-AI/litgpt#2215",),
    ),
    Case(
        name="window-one", suite="windows", build=_one, judge=judges.sees, needs=("window",), valid=square, least=_LEAST,
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=4, dim=4, value_dim=4),
        proves="a window of 1 is the token itself",
    ),
    Case(
        name="window-wide", suite="windows", build=_wide, judge=judges.sees, needs=("window",), valid=square, least=_LEAST,
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=4, dim=4, value_dim=4),
        proves="a window wider than the sequence is plain causal attention", resembles=("unslothai/unsloth#8253",),
    ),
    Case(
        name="window-past", suite="windows", build=_values, judge=past, needs=("window",), valid=self_attention,
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=6, keys=6, dim=4, value_dim=4, window=3),
        least=Sizes(queries=2, keys=2), proves="changing token t - W leaves token t as it is",
        resembles=("unslothai/unsloth#8253",),
    ),
)  # fmt: skip
