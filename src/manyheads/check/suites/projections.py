"""What is around the heads: projections, biases, cuts, joins, the output projection; and a module's manners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from manyheads.check import judges
from manyheads.check.case import Case, Finding, Skip, self_attention
from manyheads.check.multihead.problem import Multihead, natural, remade, whole_answer, with_weights
from manyheads.check.multihead.storage import in_places, only_held
from manyheads.check.multihead.subject import MultiheadSubject
from manyheads.check.problem import Problem, Sizes
from manyheads.check.spell import row
from manyheads.check.subject import CallError, Subject, gradients_of
from manyheads.check.suites.masks import some_mask

__all__ = ["CASES"]


def _natural(sizes: Sizes, generator: torch.Generator) -> Multihead:
    return natural(sizes, generator)


def _biased(sizes: Sizes, generator: torch.Generator) -> Multihead:
    return natural(sizes, generator, biases=True)


def _uniform(sizes: Sizes, generator: torch.Generator) -> Multihead:
    """W_q of zeros: every head takes the mean of its values."""
    problem = natural(sizes, generator)
    return with_weights(problem, w_q=torch.zeros_like(problem.weights["w_q"]))


def _causal(sizes: Sizes, generator: torch.Generator) -> Multihead:
    return replace(natural(sizes, generator), causal=True)


def _masked(sizes: Sizes, generator: torch.Generator) -> Multihead:
    return replace(natural(sizes, generator), visible=some_mask(generator, 1, 1, sizes.queries, sizes.keys))


def _cross(sizes: Sizes, generator: torch.Generator) -> Multihead:
    return natural(sizes, generator, cross=True)


def _wide(sizes: Sizes, generator: torch.Generator) -> Multihead:
    """x wider than its heads together."""
    return natural(sizes, generator, extra=2)


def values(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """The output is the reference's; biases that the function does not take are none."""
    assert isinstance(subject, MultiheadSubject)
    assert isinstance(problem, Multihead)
    return judges.values(subject, only_held(problem, subject.adapter.slots))


def refuses_uneven(subject: Subject, problem: Problem) -> Finding | Skip | None:  # noqa: ARG001 the width is its own
    """A width that the number of heads does not divide is an error, in the constructor or in the call."""
    assert isinstance(subject, MultiheadSubject)
    if "head_dim" in {
        *subject.adapter.names,
        *subject.adapter.built,
        *(subject.plan.configured if subject.plan else ()),
    }:
        return Skip("its heads have a width of their own")
    if subject.plan is None and subject.adapter.kind != "function":
        return Skip("the object is there already, with a width that its heads divide")
    width, heads = 5, 2
    flat = {"w_q": (width, 1, width), "w_k": (width, 1, width), "w_v": (width, 1, width), "w_o": (1, width, width)}
    generator = torch.Generator().manual_seed(1)
    uneven = natural(Sizes(queries=2, keys=2, dim=width, value_dim=width), generator)
    assert {name: tuple(weight.shape) for name, weight in uneven.weights.items()} == flat
    try:
        made = _with_heads(subject, subject.prepare(uneven), heads)
    except CallError:
        return None
    return Finding(
        f"an error that names a width of {width} and {heads} heads", f"an output of shape {tuple(made.shape)}", "accepted",
        f"{width} numbers cannot be cut into {heads} heads evenly; a silent answer hides a wrong configuration",
        code=f"x of width {width} with {heads} heads",
    )  # fmt: skip


def _with_heads(subject: MultiheadSubject, problem: Problem, heads: int) -> Tensor:
    """The output where a problem of one head is put as one of several."""
    assert isinstance(problem, Multihead)
    if subject.plan is not None:
        wanted = replace(subject.wanted(problem), heads=heads, kv_heads=heads, head_dim=problem.width // heads)
        return subject.output(subject.made_as(wanted, subject.arguments(problem)), problem)
    given = subject.arguments(problem)
    for role in ("heads", "kv_heads"):
        if role in subject.adapter.names:
            given[subject.adapter.names[role]] = heads
    return subject.output(subject.run(given), problem)


def gradients(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """The gradients of x and of every weight under a random cotangent are the reference's."""
    assert isinstance(subject, MultiheadSubject)
    assert isinstance(problem, Multihead)
    problem = only_held(problem, subject.adapter.slots)
    problem = remade(problem, x=problem.x.detach().requires_grad_())
    leaves = {name: weight.detach().requires_grad_() for name, weight in problem.weights.items()}
    problem = remade(problem, weights=leaves)
    out, places = subject.with_leaves(problem)
    right = whole_answer(problem)
    if not torch.allclose(out.double(), right, rtol=0.0, atol=subject.allowed(right.detach())):
        return Skip("its values differ already, so its gradients must")
    if not out.requires_grad:
        return Skip("the output carries no gradient")
    cotangent = torch.randint(-2, 3, tuple(out.shape), generator=torch.Generator().manual_seed(subject.seed)).double()
    wanted = dict(zip(
        ("x", *leaves), torch.autograd.grad((right * cotangent).sum(), (problem.x, *leaves.values())), strict=True,
    ))  # fmt: skip
    found = gradients_of(subject, (out.double() * cotangent).sum(), places.values())
    expected = {"x": wanted.pop("x")} | _in_places(subject, problem, wanted)
    for name, mine in zip(places, found, strict=True):
        right_one = expected[name].detach()
        have = torch.zeros_like(right_one) if mine is None else mine
        off = ~torch.isclose(have.double(), right_one.double(), rtol=0.0, atol=4 * subject.allowed(right_one))
        if bool(off.any()):
            at = tuple(off.nonzero()[0][:-1].tolist())
            return Finding(
                f"gradient of {name} at {at}: {row(right_one[at])}",
                f"gradient of {name} at {at}: {'none' if mine is None else row(have[at])}",
                f"gradient of {name}", "the output is right, and its derivative is not",
            )  # fmt: skip
    return None


def _in_places(subject: MultiheadSubject, problem: Multihead, gradient: dict[str, Tensor]) -> dict[str, Tensor]:
    """name or path -> the gradient of what stands there."""
    return in_places(subject.adapter.slots, replace(problem, weights=gradient))


def forgets(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """A call between two that are equal changes nothing."""
    problem = subject.prepare(problem)
    assert isinstance(problem, Multihead)
    first = subject.call(problem).clone()
    subject.call(remade(problem, x=problem.x.flip(1) + 1))
    again = subject.call(problem)
    if torch.allclose(first.double(), again.double(), rtol=0.0, atol=subject.allowed(first), equal_nan=True):
        return None
    return Finding(
        f"the second time as the first: {row(first[0, 0, 0])}", row(again[0, 0, 0]), "remembers",
        "a call leaves something behind that plays a part in the next one",
    )  # fmt: skip


def drops_nothing(subject: Subject, problem: Problem) -> Finding | Skip | None:
    """Made with a dropout of 1/2 and in evaluation, it gives what it gives without dropout."""
    assert isinstance(subject, MultiheadSubject)
    problem = subject.prepare(problem)
    without = subject.call(problem)
    found = replace(subject, dropout=0.5).call(problem)
    if torch.allclose(found.double(), without.double(), rtol=0.0, atol=subject.allowed(without), equal_nan=True):
        return None
    return Finding(
        f"with dropout 0.5 in evaluation as without dropout: {row(without[0, 0, 0])}", row(found[0, 0, 0]), "dropout in evaluation",
        "dropout acts in evaluation, too: functional dropout needs training=self.training",
    )  # fmt: skip


_NEEDS = ("projections",)
_FULL = Sizes(batch=2, heads=3, kv_heads=3, queries=4, keys=4, dim=2, value_dim=2)
_ALIKE = tuple(
    Sizes(batch=batch, heads=heads, kv_heads=heads, queries=tokens, keys=tokens, dim=dim, value_dim=dim)
    for batch, heads, tokens, dim in product((2, 1), (3, 2, 1), (4, 3, 2, 1), (3, 2))
)
_LEAST = Sizes()


def _even(s: Sizes) -> bool:
    """Heads of one width."""
    return s.dim == s.value_dim and s.heads % s.kv_heads == 0


def _case(
    name: str, build: Callable[[Sizes, torch.Generator], Problem], judge: Any, proves: str, *needs: str, **rest: Any
) -> Case:
    asked = {"full": _FULL, "valid": self_attention, **rest}
    return Case(
        name=name, suite="projections", build=build, judge=judge, proves=proves, needs=(*_NEEDS, *needs), **asked
    )


CASES = (
    _case(
        "projected", _natural, values, "concat(head_1, ..., head_h) W_o, each head of its own part of x W_q, x W_k and x W_v",
        also=_ALIKE,
    ),
    _case("projected-one-token", _natural, values, "one token: x W_v W_o, whatever the scores",
          full=replace(_FULL, queries=1, keys=1)),
    _case("projected-mean", _uniform, values, "with W_q = 0 every head takes the mean of its values"),
    _case("projected-biases", _biased, values, "the biases of projections are added", "biases", also=_ALIKE[:16]),
    _case("projected-causal", _causal, values, "the same under the causal rule", "causal"),
    _case("projected-mask", _masked, values, "the same under a mask", "mask"),
    _case(
        "projected-cross", _cross, values, "queries from x, keys and values from a memory", "cross",
        full=replace(_FULL, queries=3, keys=5), valid=lambda s: _even(s) and s.heads == s.kv_heads,
        also=(_FULL, replace(_FULL, batch=1, queries=1, keys=3)),
    ),
    _case(
        "projected-grouped", _natural, values, "W_k and W_v of fewer heads, each read by H/K neighbouring query heads", "grouped",
        full=Sizes(batch=2, heads=6, kv_heads=2, queries=3, keys=3, dim=2, value_dim=2), least=Sizes(heads=2),
        valid=lambda s: _even(s) and s.queries == s.keys and 1 < s.kv_heads < s.heads,
    ),
    _case(
        "wide-heads", _wide, values, "heads that are narrower than x divided by their number: sqrt is of the head's width",
        "wide-heads", demand="wide-heads",
    ),
    _case("heads-refused", _natural, refuses_uneven, "a width of 5 with 2 heads is refused", demand="heads"),
    _case("projected-gradients", _biased, gradients, "the gradients of x and of all weights", "gradients"),
    _case("calls-apart", _natural, forgets, "a call leaves nothing behind that the next one meets"),
    _case("dropout-off", _natural, drops_nothing, "dropout does nothing in evaluation", "dropout"),
)  # fmt: skip
