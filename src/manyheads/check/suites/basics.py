"""What every attention function must give: the definition, at every shape, without masks."""

from __future__ import annotations

import itertools
import math

import torch

from manyheads.check import judges
from manyheads.check.case import Case, anything, self_attention
from manyheads.check.problem import Problem, Sizes, numbers

__all__ = ["CASES", "FEW_QUERIES", "LONG", "plain"]


def plain(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Random multiples of a half."""
    s = sizes
    return Problem(
        q=numbers(generator, s.batch, s.heads, s.queries, s.dim),
        k=numbers(generator, s.batch, s.kv_heads, s.keys, s.dim),
        v=numbers(generator, s.batch, s.kv_heads, s.keys, s.value_dim),
    )


def _zero_queries(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = plain(sizes, generator)
    return Problem(q=torch.zeros_like(problem.q), k=problem.k, v=problem.v)


def _quarter(sizes: Sizes, generator: torch.Generator) -> Problem:  # noqa: ARG001 written by hand
    """Scores 2·ln 3 and 0; divided by sqrt(4) = 2 the weights are 3/4 and 1/4: 3/4 · 4 + 1/4 · 0 = 3, 3/4 · 8 = 6."""
    q = torch.tensor([2.0, 0, 0, 0]).expand(1, 1, 2, 4)
    k = torch.tensor([[math.log(3), 0, 0, 0], [0.0, 1, 1, 1]]).view(1, 1, 2, 4)
    v = torch.tensor([[4.0, 8, 0, 0], [0.0, 0, 0, 0]]).view(1, 1, 2, 4)
    return Problem(q=q, k=k, v=v)


def _large(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Scores in the hundreds and thousands: exp of them overflows in float32 and float64."""
    problem = plain(sizes, generator)
    return Problem(q=problem.q * 64, k=problem.k * 64, v=problem.v)


def _scaled(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = plain(sizes, generator)
    return Problem(q=problem.q, k=problem.k, v=problem.v, scale=0.3)


FULL = Sizes(batch=2, heads=3, kv_heads=3, queries=5, keys=5, dim=4, value_dim=4)

# axes of one, which squeeze and broadcasting treat apart, and axes of one size, which can be taken for each other
_ALIKE = tuple(
    Sizes(batch=batch, heads=heads, kv_heads=heads, queries=tokens, keys=tokens, dim=dim, value_dim=dim)
    for batch, heads, tokens, dim in itertools.product((2, 1), (3, 2, 1), (3, 2, 1), (3, 2))
)
# more tokens than a tile of a kernel holds, and no multiple of one
LONG = tuple(
    Sizes(batch=1, heads=2, kv_heads=2, queries=tokens, keys=tokens, dim=8, value_dim=8) for tokens in (67, 130)
)
FEW_QUERIES = tuple(
    Sizes(batch=batch, heads=heads, kv_heads=heads, queries=queries, keys=keys, dim=2, value_dim=2)
    for batch, heads, queries, keys in itertools.product((2, 1), (2, 1), (2, 1), (4, 3, 2))
)
FEW_QUERIES += (Sizes(heads=2, kv_heads=2, queries=3, keys=130, dim=8, value_dim=8),)

CASES = (
    Case(
        name="values", suite="basics", build=plain, judge=judges.values, full=FULL, valid=self_attention, also=(*_ALIKE, *LONG),
        proves="softmax(q k^T / sqrt(dim)) v, for each sequence and head",
        resembles=("pytorch/pytorch#119811",),
    ),
    Case(
        name="scale", suite="basics", build=_quarter, judge=judges.values, full=Sizes(queries=2, keys=2, dim=4, value_dim=4),
        least=Sizes(queries=2, keys=2, dim=4, value_dim=4),
        proves="the scores are divided by sqrt(dim): by hand, weights 3/4 and 1/4",
        resembles=("vllm-project/vllm#48658",),
    ),
    Case(
        name="one-key", suite="basics", build=plain, judge=judges.values,
        full=Sizes(batch=2, heads=2, kv_heads=2, queries=1, keys=1, dim=4, value_dim=4), valid=self_attention,
        proves="with one key its value comes out, whatever the scores",
    ),
    Case(
        name="mean", suite="basics", build=_zero_queries, judge=judges.values, full=FULL, valid=self_attention,
        proves="queries of zero give the mean of the values",
    ),
    Case(
        name="fewer-queries", suite="basics", build=plain, judge=judges.values, needs=("cross",),
        full=Sizes(batch=2, heads=3, kv_heads=3, queries=3, keys=6, dim=4, value_dim=4), also=FEW_QUERIES,
        valid=lambda s: s.heads == s.kv_heads and s.queries <= s.keys and s.dim == s.value_dim,
        proves="fewer queries than keys: cross-attention, or a cache",
        resembles=("NVIDIA/FasterTransformer#270",),
    ),
    Case(
        name="more-queries", suite="basics", build=plain, judge=judges.may_refuse("cross", judges.values), needs=("cross",),
        full=Sizes(batch=2, heads=3, kv_heads=3, queries=6, keys=3, dim=4, value_dim=4),
        valid=lambda s: s.heads == s.kv_heads and s.queries > s.keys and s.dim == s.value_dim,
        proves="more queries than keys: cross-attention to a short memory",
    ),
    Case(
        name="value-width", suite="basics", build=plain, judge=judges.values, needs=("value-width",),
        full=Sizes(batch=2, heads=3, kv_heads=3, queries=5, keys=5, dim=4, value_dim=6),
        valid=lambda s: s.heads == s.kv_heads and s.queries == s.keys,
        proves="values wider than keys, and sqrt is of the keys' width",
        resembles=("pytorch/pytorch#54128",),
    ),
    Case(
        name="large-scores", suite="basics", build=_large, judge=judges.values, full=FULL, valid=self_attention,
        proves="scores of thousands do not overflow: softmax subtracts the largest",
    ),
    Case(
        name="explicit-scale", suite="basics", build=_scaled, judge=judges.values, full=FULL, valid=self_attention,
        needs=("scale",), proves="the scale argument replaces 1/sqrt(dim)",
        resembles=("ml-explore/mlx-swift-examples#99",),
    ),
)  # fmt: skip

assert all(anything(case.full) for case in CASES)
