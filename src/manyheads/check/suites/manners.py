"""Manners: strides, batches, repetition, the caller's tensors, empty inputs, gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.check.adapter import roles_given
from manyheads.check.case import Case, Finding, Skip, self_attention
from manyheads.check.problem import Problem, Sizes
from manyheads.check.spell import place, row
from manyheads.check.subject import CallError, Subject, as_tensor, gradients_of
from manyheads.check.suites.basics import FULL, plain
from manyheads.check.suites.masks import some_mask

__all__ = ["CASES", "STRIDES"]


def _swapped(x: Tensor) -> Tensor:
    """The last two axes stored the other way round."""
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def _outer(x: Tensor) -> Tensor:
    """The two axes before the last stored the other way round, as view(..).transpose leaves them."""
    return x.transpose(-2, -3).contiguous().transpose(-2, -3) if x.dim() > 2 else _swapped(x)


def _every_other(x: Tensor) -> Tensor:
    """Every second number of a wider tensor."""
    wide = torch.full((*x.shape[:-1], 2 * x.shape[-1]), torch.nan, dtype=x.dtype, device=x.device)
    wide[..., ::2] = x
    return wide[..., ::2]


def _gaps(x: Tensor) -> Tensor:
    """Rows with a gap behind each, as a slice of a fused q, k, v has."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] + 3), torch.nan, dtype=x.dtype, device=x.device)
    wide[..., : x.shape[-1]] = x
    return wide[..., : x.shape[-1]]


def _inside(x: Tensor) -> Tensor:
    """In the middle of a longer buffer."""
    buffer = torch.full((x.numel() + 7,), torch.nan, dtype=x.dtype, device=x.device)
    buffer[5 : 5 + x.numel()] = x.flatten()
    return buffer[5 : 5 + x.numel()].view(x.shape)


def _all_reversed(x: Tensor) -> Tensor:
    """All axes stored in reverse order, as Fortran does."""
    axes = tuple(range(x.dim() - 1, -1, -1))
    return x.permute(axes).contiguous().permute(axes)


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "view and transpose": _outer,
    "last two axes transposed": _swapped,
    "every second number": _every_other,
    "rows with gaps": _gaps,
    "inside a longer buffer": _inside,
    "axes in reverse order": _all_reversed,
}
"""Tensors of equal values, otherwise laid out in memory."""


def strides(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """Exactly one of q, k, v laid out otherwise: the function's own answer stays."""
    problem = subject.prepare(problem)
    plainly = subject.call(problem).double()
    for pattern, lay_out in STRIDES.items():
        for chosen in ("q", "k", "v"):
            try:
                found = subject.call(
                    problem,
                    change=lambda role, x, c=chosen, f=lay_out: f(x) if role == c else x,  # type: ignore[misc]
                ).double()
            except CallError as error:
                return Finding(
                    f"an answer with {chosen} laid out otherwise ({pattern})", str(error), error.kind, line=error.line,
                    demand="strides",
                )  # fmt: skip
            off = ~torch.isclose(found, plainly, rtol=0.0, atol=subject.allowed(plainly), equal_nan=True)
            if bool(off.any()):
                index = tuple(off.nonzero()[0][:3].tolist())
                at = place(index, tuple(found.shape))
                return Finding(
                    f"{at}: {row(plainly[index])}, as with contiguous tensors",
                    f"{at}: {row(found[index])} with {chosen} laid out otherwise ({pattern})",
                    f"strides of {chosen}",
                    "memory is read as if it were contiguous: use the strides, or call contiguous()",
                )
    return None


def alone(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """Each sequence of a batch as it comes out alone."""
    problem = subject.prepare(problem)
    together = subject.call(problem).double()
    for sample in range(problem.q.shape[0]):
        only = slice(sample, sample + 1)
        one = subject.call(replace(problem, q=problem.q[only], k=problem.k[only], v=problem.v[only])).double()
        if not torch.allclose(one, together[only], rtol=0.0, atol=subject.allowed(together), equal_nan=True):
            return Finding(
                f"sequence {sample} as it comes out alone, {row(one[0, 0, 0])}",
                f"in the batch {row(together[sample, 0, 0])}",
                "samples mix", "sequences of a batch have an effect on each other",
            )  # fmt: skip
    return None


def repeated(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """Three calls, the same numbers to the last bit."""
    problem = subject.prepare(problem)
    first = subject.call(problem).clone()
    for call in (2, 3):
        again = subject.call(problem)
        if not torch.equal(first.nan_to_num(7.0), again.nan_to_num(7.0)):
            return Finding(
                "the same output every time", f"call {call} differs by up to {(again - first).abs().max().item():.3g}",
                "not repeatable", "something random or something left over from the call before plays a part",
            )  # fmt: skip
    return None


def untouched(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """The caller's tensors hold after the call what they held before."""
    problem = subject.prepare(problem)
    given = subject.arguments(problem)
    before = {name: as_tensor(value).clone() for name, value in given.items() if hasattr(value, "shape")}
    subject.answered(problem, given)
    roles = roles_given(subject.adapter, {name: name for name in before})
    for role, name in roles.items():
        if not torch.equal(before[name], as_tensor(given[name])):
            return Finding(
                f"{name} as it was", f"{name} has other numbers after the call", f"{role} overwritten",
                "the function writes into its arguments: what the caller does with them next is wrong",
            )  # fmt: skip
    return None


def empty(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """Nothing in: an empty output of the right shape, zeros where there are queries but no keys; backward, too.

    An error is no wrong answer, but where the same call is answered without the mask, it is one.
    """
    try:
        plainly = _zeros(subject, problem) or _empty_backward(subject, problem)
    except CallError as error:
        if error.kind == "shape":
            raise
        return Finding("an empty output", str(error), error.kind, line=error.line, demand="empty")
    if plainly is not None:
        return plainly
    for what, asked in _also_asked(subject, problem).items():
        try:
            found = _zeros(subject, asked)
        except CallError as error:
            found = Finding(
                f"an empty output with {what}, as without it", str(error), f"empty with {what}",
                f"without {what} the same call is answered, and with it there is an error", line=error.line,
                demand="empty" if not problem.k.shape[2] or _is_about_minus_one(error) else "",
            )  # fmt: skip
        if found is not None:
            return replace(found, code=subject.code(asked))
    return None


def _is_about_minus_one(error: CallError) -> bool:
    """view(0, -1, ..) cannot know what -1 is: textbooks write it, and so does torch's own module."""
    return "of 0 elements" in str(error) or "of size 0" in str(error)


def _zeros(subject: Subject, problem: Problem) -> Finding | None:
    out = subject.call(problem)
    if bool(out.any()) or not bool(out.isfinite().all()):
        said = row(out[0, 0, 0])
        return Finding("zeros: there is no key to attend to", said, "not zero without keys", demand="empty")
    return None


def _also_asked(subject: Subject, problem: Problem) -> dict[str, Problem]:
    """What may be asked of a function -> the same problem with that."""
    (b, h, t, _), s = problem.q.shape, problem.k.shape[2]
    ways: dict[str, tuple[str, dict[str, Any]]] = {
        "mask": ("a mask", {"visible": torch.ones(1, 1, t, s, dtype=torch.bool)}),
        "padding": ("padding", {"keep": torch.ones(b, s, dtype=torch.bool)}),
        "bias": ("a bias", {"bias": torch.zeros(1, 1, t, s)}),
        "sinks": ("sinks", {"sinks": torch.zeros(h)}),
    }
    if t == s:
        ways |= {"causal": ("the causal flag", {"causal": True}), "window": ("a window", {"causal": True, "window": 2})}
    return {
        what: subject.prepare(replace(problem, **fields))
        for feature, (what, fields) in ways.items() if feature not in subject.adapter.lacks
    }  # fmt: skip


def _empty_backward(subject: Subject, problem: Problem) -> Finding | None:
    if "gradients" in subject.adapter.lacks:
        return None
    leaves = [x.detach().requires_grad_() for x in (problem.q, problem.k, problem.v)]
    made = subject.call(replace(problem, q=leaves[0], k=leaves[1], v=leaves[2]))
    if made.requires_grad:
        for name, gradient in zip("qkv", gradients_of(subject, made.sum(), leaves), strict=True):
            if gradient is not None and bool(gradient.any() | ~gradient.isfinite().all()):
                return Finding(f"no gradient for {name}", row(gradient), "gradient without keys", demand="empty")
    return None


def gradients(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """The gradients of q, k and v under a random cotangent are the reference's."""
    leaves = {role: getattr(problem, role).detach().requires_grad_() for role in ("q", "k", "v")}
    live = replace(problem, **leaves)
    out = subject.call(live)
    right = subject.answer(live)
    if not torch.allclose(out.double(), right, rtol=0.0, atol=subject.allowed(right.detach())):
        return Skip("its values differ already, so its gradients must")
    if not out.requires_grad:
        return Skip("the output carries no gradient")
    cotangent = torch.randint(-2, 3, tuple(out.shape), generator=torch.Generator().manual_seed(subject.seed)).double()
    found = gradients_of(subject, (out.double() * cotangent).sum(), leaves.values())
    expected = torch.autograd.grad((right * cotangent).sum(), list(leaves.values()))
    for role, mine, wanted in zip(leaves, found, expected, strict=True):
        have = torch.zeros_like(wanted) if mine is None else mine
        off = ~torch.isclose(have.double(), wanted.double(), rtol=0.0, atol=4 * subject.allowed(wanted))
        if bool(off.any()):
            index = tuple(off.nonzero()[0][:3].tolist())
            return Finding(
                f"gradient of {role} at {index}: {row(wanted[index])}",
                f"gradient of {role} at {index}: {'none' if mine is None else row(have[index])}",
                f"gradient of {role}", "the output is right, and its derivative is not",
            )  # fmt: skip
    return None


def _masked(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), visible=some_mask(generator, 1, 1, sizes.queries, sizes.keys))


def _causal(sizes: Sizes, generator: torch.Generator) -> Problem:
    return replace(plain(sizes, generator), causal=True)


def _heads(s: Sizes) -> bool:
    return s.heads == s.kv_heads


_CUBE = Sizes(batch=2, heads=2, kv_heads=2, queries=3, keys=3, dim=4, value_dim=4)
_NO_BATCH, _NO_QUERIES, _NO_KEYS = replace(_CUBE, batch=0), replace(_CUBE, queries=0), replace(_CUBE, keys=0)

CASES = (
    Case(
        name="strides", suite="manners", build=plain, judge=strides,
        needs=("strides",), full=FULL, valid=self_attention,
        proves="six ways of lying in memory, for q, k and v in turn, change nothing",
        resembles=("pytorch/pytorch#187506", "ROCm/pytorch#3230"),
    ),
    Case(
        name="batch", suite="manners", build=plain, judge=alone, valid=self_attention, needs=("batch",),
        full=replace(FULL, batch=3), least=Sizes(batch=2), proves="a sequence comes out as it does alone",
        resembles=("pytorch/pytorch#81077",),
    ),
    Case(
        name="repeatable", suite="manners", build=plain, judge=repeated, full=FULL, valid=self_attention,
        proves="the same call gives the same numbers",
    ),
    Case(
        name="inputs-untouched", suite="manners", build=plain, judge=untouched, full=FULL, valid=self_attention,
        proves="q, k and v hold afterwards what they held before",
    ),
    Case(
        name="mask-untouched", suite="manners", build=_masked, judge=untouched, full=FULL, valid=self_attention,
        needs=("mask",), proves="the mask holds afterwards what it held before",
    ),
    Case(
        name="no-batch", suite="manners", build=plain, judge=empty, needs=("batch", "empty"),
        proves="a batch of 0 gives an empty output", resembles=("Dao-AILab/flash-attention#1159",), valid=_heads,
        full=_NO_BATCH, least=_NO_BATCH,
    ),
    Case(
        name="no-queries", suite="manners", build=plain, judge=empty, valid=_heads, needs=("cross", "empty"),
        proves="no queries give an empty output", resembles=("Dao-AILab/flash-attention#1159",),
        full=_NO_QUERIES, least=_NO_QUERIES,
    ),
    Case(
        name="no-keys", suite="manners", build=plain, judge=empty, valid=_heads, needs=("cross", "empty"),
        proves="no keys give zeros", resembles=("Dao-AILab/flash-attention#1159",),
        full=_NO_KEYS, least=_NO_KEYS,
    ),
    Case(
        name="gradients", suite="backward", build=plain, judge=gradients, full=FULL, valid=self_attention,
        needs=("gradients",), proves="the gradients of q, k and v",
    ),
    Case(
        name="gradients-mask", suite="backward", build=_masked, judge=gradients, full=FULL, valid=self_attention,
        needs=("gradients", "mask"), proves="the gradients under a mask",
    ),
    Case(
        name="gradients-causal", suite="backward", build=_causal, judge=gradients, full=FULL, valid=self_attention,
        needs=("gradients", "causal"), proves="the gradients under the causal flag",
    ),
    Case(
        name="gradients-grouped", suite="backward", build=plain, judge=gradients, needs=("gradients", "grouped"),
        full=Sizes(batch=2, heads=6, kv_heads=2, queries=4, keys=4, dim=4, value_dim=4), least=Sizes(heads=2, kv_heads=1),
        valid=lambda s: s.heads > s.kv_heads > 1 and s.heads % s.kv_heads == 0 and s.queries == s.keys and s.dim == s.value_dim,
        proves="a key/value head collects the gradients of all its query heads",
    ),
)  # fmt: skip
