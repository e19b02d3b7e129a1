"""Masks: polarity, shapes, blocked keys, rows that see nothing, biases."""

from __future__ import annotations

from dataclasses import replace

import torch

from manyheads.check import judges
from manyheads.check.case import Case, Finding, Skip, self_attention
from manyheads.check.problem import Problem, Sizes, numbers
from manyheads.check.spell import row
from manyheads.check.subject import Subject, gradients_of
from manyheads.check.suites.basics import FEW_QUERIES, FULL, plain

__all__ = ["CASES", "one_hot", "some_mask"]


def some_mask(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Random booleans; every row sees a key, and where there are two it misses one."""
    keys = shape[-1]
    mask = torch.randint(0, 2, shape, generator=generator).bool()
    first = torch.randint(0, max(keys, 1), (*shape[:-1], 1), generator=generator)
    mask = mask.scatter(-1, first, value=True)
    return mask.scatter(-1, (first + 1) % keys, value=False) if keys > 1 else mask


def one_hot(sizes: Sizes, generator: torch.Generator) -> Problem:  # noqa: ARG001 nothing random in it
    """Queries and keys of ones, so that all scores are equal and not 0, and value j is 1 at j: the output is the weights
    of the keys, whatever the scale."""
    s = sizes
    return Problem(
        q=torch.ones(s.batch, s.heads, s.queries, s.dim),
        k=torch.ones(s.batch, s.kv_heads, s.keys, s.dim),
        v=torch.eye(s.keys).expand(s.batch, s.kv_heads, s.keys, s.keys).contiguous(),
    )


def square(s: Sizes) -> bool:
    """One-hot self-attention."""
    return self_attention(s) and s.keys == s.value_dim


def rectangle(s: Sizes) -> bool:
    """One-hot with a cache: fewer queries than keys."""
    return s.heads == s.kv_heads and s.queries < s.keys == s.dim == s.value_dim


def _mask(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(one_hot(sizes, generator), visible=some_mask(generator, 1, 1, sizes.queries, sizes.keys))


def _masked(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), visible=some_mask(generator, 1, 1, sizes.queries, sizes.keys))


def _per_sample(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), visible=some_mask(generator, sizes.batch, 1, sizes.queries, sizes.keys))


def _per_head(sizes: Sizes, generator: torch.Generator) -> Problem:
    mask = some_mask(generator, sizes.batch, sizes.heads, sizes.queries, sizes.keys)
    return replace(plain(sizes, generator), visible=mask)


def _loud(sizes: Sizes, generator: torch.Generator) -> Problem:
    """The last key is blocked, and it has a score of 500 and values of 1,000."""
    s, problem = sizes, plain(sizes, generator)
    q, k, v = torch.ones_like(problem.q), problem.k / 4, problem.v
    k[:, :, -1], v[:, :, -1] = 500 / s.dim**0.5, 1000.0
    visible = torch.ones(1, 1, s.queries, s.keys, dtype=torch.bool)
    visible[..., -1] = False
    return Problem(q=q, k=k, v=v, visible=visible)


def _empty_row(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = _masked(sizes, generator)
    assert problem.visible is not None
    problem.visible[:, :, 0] = False
    return problem


def _empty_sample(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = _per_sample(sizes, generator)
    assert problem.visible is not None
    problem.visible[-1] = False
    return problem


def _empty_head(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = _per_head(sizes, generator)
    assert problem.visible is not None
    problem.visible[:, -1] = False
    return problem


def _padding(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(one_hot(sizes, generator), keep=some_mask(generator, sizes.batch, sizes.keys))


def _padded(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), keep=some_mask(generator, sizes.batch, sizes.keys))


def _fewer(s: Sizes) -> bool:
    return s.heads == s.kv_heads and s.queries < s.keys and s.dim == s.value_dim


def _bias(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), bias=numbers(generator, 1, 1, sizes.queries, sizes.keys))


def _loud_bias(sizes: Sizes, generator: torch.Generator) -> Problem:
    problem = _bias(sizes, generator)
    assert problem.bias is not None
    return replace(problem, bias=problem.bias * 500)


def _blocking_bias(sizes: Sizes, generator: torch.Generator) -> Problem:
    blocked = ~some_mask(generator, 1, 1, sizes.queries, sizes.keys)
    return replace(one_hot(sizes, generator), bias=torch.zeros(blocked.shape).masked_fill(blocked, -torch.inf))


def clean_gradients(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """Gradients are finite, and the row that sees nothing has none."""
    prepared = subject.prepare(problem)
    leaves = [x.detach().requires_grad_() for x in (prepared.q, prepared.k, prepared.v)]
    out = subject.call(replace(prepared, q=leaves[0], k=leaves[1], v=leaves[2]))
    if not out.requires_grad:
        return Skip("the output carries no gradient")
    found = gradients_of(subject, out[:, :, 1:].sum() if out.shape[2] > 1 else out.sum(), leaves)
    for name, gradient in zip("qkv", found, strict=True):
        if gradient is not None and not bool(gradient.isfinite().all()):
            bad = int((~gradient.isfinite()).sum())
            return Finding(
                f"finite gradients, zero for query 0 of {name}" if name == "q" else "finite gradients",
                f"the gradient of {name}: {bad} of {gradient.numel()} numbers are NaN or infinite",
                "NaN gradients",
                "the row that sees nothing has -inf only: its NaN is multiplied by 0 on the way back and stays NaN",
                demand="empty-rows",
            )
    first = found[0]
    if first is not None and bool(first[:, :, 0].any()):
        return Finding(
            "zero gradients for query 0", f"{row(first[0, 0, 0])}", "gradients on empty rows", demand="empty-rows"
        )
    return None


_THREADS = ("pytorch/pytorch#41508", "pytorch/pytorch#81077")
_FEW = Sizes(batch=2, heads=2, kv_heads=2, queries=3, keys=5, dim=4, value_dim=4)
_ONES = tuple(
    Sizes(batch=batch, heads=heads, kv_heads=heads, queries=n, keys=n, dim=n, value_dim=n)
    for batch in (2, 1) for heads in (2, 1) for n in (3, 2, 1)
)  # fmt: skip
_NARROW = Sizes(batch=2, heads=2, kv_heads=2, queries=4, keys=4, dim=4, value_dim=4)

CASES = (
    Case(
        name="mask", suite="masks", build=_mask, judge=judges.sees, full=_NARROW, valid=square, needs=("mask",), also=_ONES,
        proves="the mask shows what it should: its polarity, by equal weights over the visible keys",
        resembles=("pytorch/pytorch#170415", "neuro-galaxy/torch_brain#74"),
    ),
    Case(
        name="mask-values", suite="masks", build=_masked, judge=judges.values, full=FULL, valid=self_attention,
        needs=("mask",), proves="masked scores are left out before softmax, so that the rest adds up to 1",
        resembles=("neuro-galaxy/torch_brain#74",),
    ),
    Case(
        name="mask-cross", suite="masks", build=_masked, judge=judges.values, full=_FEW, valid=_fewer, also=FEW_QUERIES,
        needs=("mask", "cross"), proves="a mask for fewer queries than keys, down to one",
    ),
    Case(
        name="mask-blocks-all", suite="masks", build=_loud, judge=judges.values, valid=self_attention, needs=("mask",),
        full=Sizes(heads=2, kv_heads=2, queries=3, keys=3, dim=4, value_dim=4), least=Sizes(queries=2, keys=2),
        proves="a blocked key with a score of 500 and values of 1,000 has no weight at all",
    ),
    Case(
        name="mask-samples", suite="masks", build=_per_sample, judge=judges.values, full=FULL, valid=self_attention,
        needs=("mask", "mask-samples"), proves="each sequence of a batch has a mask of its own",
        resembles=("pytorch/pytorch#64706",),
    ),
    Case(
        name="mask-heads", suite="masks", build=_per_head, judge=judges.values, full=FULL, valid=self_attention,
        needs=("mask", "mask-heads"), proves="each head has a mask of its own", resembles=("pytorch/pytorch#64706",),
    ),
    Case(
        name="empty-row", suite="masks", build=_empty_row, judge=judges.values, full=FULL, valid=self_attention,
        needs=("mask", "empty-rows"), proves="a query that sees nothing gives zeros, not NaN and not the mean of the values",
        resembles=_THREADS,
    ),
    Case(
        name="empty-sample", suite="masks", build=_empty_sample, judge=judges.values, full=FULL, valid=self_attention,
        needs=("mask", "empty-rows", "mask-samples"), proves="a sequence of length 0 gives zeros and leaves the others alone",
        resembles=("pytorch/pytorch#81077",),
    ),
    Case(
        name="empty-head", suite="masks", build=_empty_head, judge=judges.values, full=FULL, valid=self_attention,
        needs=("mask", "empty-rows", "mask-heads"), proves="a head that sees nothing gives zeros and leaves the others alone",
        resembles=("pytorch/pytorch#160064",),
    ),
    Case(
        name="empty-row-gradients", suite="masks", build=_empty_row, judge=clean_gradients, full=FULL, valid=self_attention,
        needs=("mask", "empty-rows", "gradients"), proves="a query that sees nothing has zero gradients and spoils no others",
        resembles=("pytorch/pytorch#41508",),
    ),
    Case(
        name="padding", suite="masks", build=_padding, judge=judges.sees, full=_NARROW, valid=square, needs=("padding",),
        proves="padding removes keys, and the same keys for every query", resembles=("pytorch/pytorch#63271",),
    ),
    Case(
        name="padding-cross", suite="masks", build=_padded, judge=judges.values, full=_FEW, valid=_fewer, also=FEW_QUERIES,
        needs=("padding", "cross"), proves="padding of a memory that is longer than the queries",
    ),
    Case(
        name="bias", suite="masks", build=_bias, judge=judges.values, full=FULL, valid=self_attention, needs=("bias",),
        proves="a finite bias is added after scaling", resembles=("pytorch/pytorch#147209",),
    ),
    Case(
        name="bias-cross", suite="masks", build=_bias, judge=judges.values, full=_FEW, valid=_fewer, also=FEW_QUERIES,
        needs=("bias", "cross"), proves="a bias for fewer queries than keys, down to one",
    ),
    Case(
        name="bias-large", suite="masks", build=_loud_bias, judge=judges.values, full=FULL, valid=self_attention,
        needs=("bias",), proves="a bias of 1,000 does not overflow: softmax subtracts the largest",
    ),
    Case(
        name="bias-minus-infinity", suite="masks", build=_blocking_bias, judge=judges.sees, full=_NARROW, valid=square,
        needs=("bias",), proves="a bias of -inf blocks a key", resembles=("pytorch/pytorch#92554",),
    ),
)  # fmt: skip
