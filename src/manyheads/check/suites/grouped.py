"""Grouped heads: several query heads to one key/value head."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyheads.check import judges
from manyheads.check.case import Case
from manyheads.check.problem import Problem, Sizes
from manyheads.check.suites.basics import plain

__all__ = ["CASES"]


def _constant(sizes: Sizes, generator: torch.Generator) -> Problem:
    """All values of key/value head j are j + 1: the output says which head was read, whatever the scores."""
    problem = plain(sizes, generator)
    heads = torch.arange(1.0, sizes.kv_heads + 1).view(1, -1, 1, 1)
    return replace(problem, v=heads.expand(problem.v.shape).contiguous())


def _square(s: Sizes) -> bool:
    return s.heads % s.kv_heads == 0 and 1 < s.kv_heads < s.heads and s.queries == s.keys and s.dim == s.value_dim


def _one(s: Sizes) -> bool:
    return s.kv_heads == 1 and s.queries == s.keys and s.dim == s.value_dim


_LEAST = Sizes(heads=2, kv_heads=1)
_GROUPS = tuple(
    Sizes(batch=batch, heads=group * kv_heads, kv_heads=kv_heads, queries=tokens, keys=tokens, dim=2, value_dim=2)
    for batch in (2, 1) for kv_heads in (4, 3, 2) for group in (3, 2) for tokens in (4, 2, 1)
)  # fmt: skip

CASES = (
    Case(
        name="group-order", suite="grouped-heads", build=_constant, judge=judges.values, needs=("grouped",), valid=_square,
        full=Sizes(heads=6, kv_heads=2, queries=2, keys=2, dim=2, value_dim=2), least=_LEAST,
        proves="query head h reads key/value head h // (H/K): 0, 0, 1, 1 and not 0, 1, 0, 1",
        resembles=("onnx/onnx#7274", "PrimeIntellect-ai/prime-rl#2681"),
    ),
    Case(
        name="group-values", suite="grouped-heads", build=plain, judge=judges.values, needs=("grouped",), valid=_square,
        full=Sizes(batch=2, heads=6, kv_heads=2, queries=4, keys=4, dim=4, value_dim=4), least=_LEAST, also=_GROUPS,
        proves="grouped heads with H/K other than K", resembles=("ggml-org/llama.cpp#3364",),
    ),
    Case(
        name="multi-query", suite="grouped-heads", build=plain, judge=judges.values, needs=("multi-query",), valid=_one,
        full=Sizes(batch=2, heads=4, kv_heads=1, queries=4, keys=4, dim=4, value_dim=4), least=_LEAST,
        proves="one key/value head for all query heads",
    ),
    Case(
        name="group-refused", suite="grouped-heads", build=plain, judge=judges.refuses, needs=("grouped",), demand="grouped",
        full=Sizes(heads=5, kv_heads=2, queries=2, keys=2, dim=2, value_dim=2), valid=lambda s: s.heads % s.kv_heads > 0,
        proves="5 query heads with 2 key/value heads are refused", resembles=("keras-team/keras#23081",),
    ),
)  # fmt: skip
