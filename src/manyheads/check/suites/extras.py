"""What some models add: a softcap, sinks; and weights that are returned."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyheads.check import judges
from manyheads.check.case import Case, self_attention
from manyheads.check.problem import Problem, Sizes, numbers
from manyheads.check.suites.basics import FULL, plain
from manyheads.check.suites.masks import some_mask

__all__ = ["CASES"]


def _softcap(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Scores up to some hundreds, so that a cap of 50 bites."""
    problem = plain(sizes, generator)
    return replace(problem, q=problem.q * 8, k=problem.k * 8, softcap=50.0)


def _softcap_120(sizes: Sizes, generator: torch.Generator) -> Problem:  # noqa: ARG001 written by hand
    """Scores 120 and 48: capped at 50 they are 50·tanh(2.4) = 49.18 and 50·tanh(0.96) = 37.21."""
    q = torch.tensor([2.0, 0, 0, 0]).expand(1, 1, 2, 4)
    k = torch.tensor([[120.0, 0, 0, 0], [48.0, 0, 0, 0]]).view(1, 1, 2, 4)
    v = torch.tensor([[0.0, 0, 0, 0], [1e5, 1, 0, 0]]).view(1, 1, 2, 4)
    return Problem(q=q, k=k, v=v, softcap=50.0)


def _softcap_mask(sizes: Sizes, generator: torch.Generator) -> Problem:
    visible = some_mask(generator, 1, 1, sizes.queries, sizes.keys)
    return replace(_softcap(sizes, generator), softcap=2.0, visible=visible)


def _sinks(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), sinks=numbers(generator, sizes.heads))


def _sinks_by_hand(sizes: Sizes, generator: torch.Generator) -> Problem:  # noqa: ARG001 written by hand
    """Scores 1, 2, 3 (after the scale of 1/2) and a sink of 0.5: weights 0.0854, 0.2321, 0.6308, total 0.948."""
    q = torch.tensor([2.0, 0, 0, 0]).expand(1, 1, 3, 4)
    k = torch.tensor([[1.0, 0, 0, 0], [2.0, 0, 0, 0], [3.0, 0, 0, 0]]).view(1, 1, 3, 4)
    return Problem(q=q, k=k, v=torch.eye(4)[:3].view(1, 1, 3, 4), sinks=torch.tensor([0.5]))


def _loud_sinks(sizes: Sizes, generator: torch.Generator) -> Problem:
    """Sinks far above and far below all scores: exp(sink) overflows unless it is part of the largest logit."""
    sinks = torch.tensor([2000.0, -2000.0]).repeat(sizes.heads)[: sizes.heads]
    return replace(plain(sizes, generator), sinks=sinks)


def _sinks_alone(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(_masked(sizes, generator), sinks=numbers(generator, sizes.heads))


def _masked(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = replace(plain(sizes, generator), visible=some_mask(generator, 1, 1, sizes.queries, sizes.keys))
    assert problem.visible is not None
    problem.visible[:, :, 0] = False
    return problem


_ONES = tuple(
    Sizes(batch=batch, heads=heads, kv_heads=heads, queries=tokens, keys=tokens, dim=2, value_dim=2)
    for batch in (2, 1) for heads in (2, 1) for tokens in (2, 1)
)  # fmt: skip
_HAND = Sizes(queries=2, keys=2, dim=4, value_dim=4)

CASES = (
    Case(
        name="softcap", suite="extras", build=_softcap_120, judge=judges.values, full=_HAND, least=_HAND, needs=("softcap",),
        proves="a score of 120 under a cap of 50 becomes 49.18", resembles=("vllm-project/vllm-metal#665",),
    ),
    Case(
        name="softcap-values", suite="extras", build=_softcap, judge=judges.values, full=FULL, valid=self_attention,
        needs=("softcap",), proves="cap · tanh(score / cap), after the scale", resembles=("vllm-project/vllm-metal#665",),
    ),
    Case(
        name="softcap-mask", suite="extras", build=_softcap_mask, judge=judges.values, full=FULL, valid=self_attention,
        needs=("softcap", "mask"), proves="the cap acts before the mask: -inf stays -inf",
    ),
    Case(
        name="sinks", suite="extras", build=_sinks_by_hand, judge=judges.values, needs=("sinks",),
        full=Sizes(queries=3, keys=3, dim=4, value_dim=4), least=Sizes(queries=3, keys=3, dim=4, value_dim=4),
        proves="scores 1, 2, 3 and a sink of 0.5: weights 0.0854, 0.2321, 0.6308",
        resembles=("fla-org/flash-linear-attention#831",),
    ),
    Case(
        name="sinks-values", suite="extras", build=_sinks, judge=judges.values, full=FULL, valid=self_attention, also=_ONES,
        needs=("sinks",), proves="one more logit a head in the denominator", resembles=("vllm-project/vllm-metal#550",),
    ),
    Case(
        name="sinks-large", suite="extras", build=_loud_sinks, judge=judges.values, full=FULL, valid=self_attention,
        needs=("sinks",), proves="a sink of 2,000 takes everything and one of -2,000 nothing; neither overflows",
    ),
    Case(
        name="sinks-empty-row", suite="extras", build=_sinks_alone, judge=judges.values, full=FULL, valid=self_attention,
        needs=("sinks", "mask"), proves="a query that sees nothing but the sink gives zeros",
    ),
    Case(
        name="weights", suite="extras", build=plain, judge=judges.weights, full=FULL, valid=self_attention, also=_ONES,
        needs=("weights",), proves="the weights of every head come back, not their average",
        resembles=("facebookresearch/fairseq#3365", "pytorch/pytorch#34537"),
    ),
    Case(
        name="weights-empty-row", suite="extras", build=_masked, judge=judges.weights, full=FULL, valid=self_attention,
        needs=("weights", "mask"), proves="asking for weights changes no output, also where a row sees nothing",
        resembles=("pytorch/pytorch#160064",),
    ),
)  # fmt: skip
