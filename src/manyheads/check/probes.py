"""Small experiments with a function that may be wrong: what moves when one key's value does."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch
from torch import Tensor

from manyheads.check.adapter import Adapter
from manyheads.check.layouts import packed_shape
from manyheads.check.problem import Problem, Sizes
from manyheads.check.subject import CallError, Subject, as_tensor
from manyheads.check.suites.basics import plain
from manyheads.check.suites.masks import some_mask

__all__ = [
    "adds_floats",
    "biased_problem",
    "has_a_known_fault",
    "has_onnx",
    "mask_is",
    "masked_problem",
    "moves",
    "padded_problem",
    "padding_polarity",
    "refusals",
    "sees_whom",
    "settle_layout",
    "square_problem",
    "takes",
]

_SQUARE = Sizes(batch=2, heads=3, kv_heads=3, queries=5, keys=5, dim=4, value_dim=4)  # no two axes of one size


def square_problem(subject: Subject, **sizes: int) -> Problem:
    """A problem of self-attention without anything, as far as the layout goes."""
    chosen = subject.fit(replace(_SQUARE, **sizes))
    return subject.prepare(plain(chosen, torch.Generator().manual_seed(11)))


def masked_problem(subject: Subject) -> Problem:
    """With a mask: its own for each sequence where there are several."""
    problem = square_problem(subject)
    batch = problem.q.shape[0] if subject.adapter.mask_axes != "ts" else 1
    visible = some_mask(torch.Generator().manual_seed(5), batch, 1, 5, 5)
    return subject.prepare(replace(problem, visible=visible))


def padded_problem(subject: Subject) -> Problem:
    """With padding of its own for each sequence."""
    problem = square_problem(subject)
    keep = some_mask(torch.Generator().manual_seed(3), problem.q.shape[0], problem.k.shape[2])
    return subject.prepare(replace(problem, keep=keep))


def biased_problem(subject: Subject) -> Problem:
    """With a bias of 0 and 1.5."""
    problem = square_problem(subject)
    bias = some_mask(torch.Generator().manual_seed(5), 1, 1, 5, 5).float() * 1.5
    return subject.prepare(replace(problem, bias=bias))


def optional_problems(subject: Subject) -> dict[str, Problem]:
    """feature -> a problem that a function may refuse without being wrong."""
    made = {
        "cross": square_problem(subject, queries=3),
        "grouped": square_problem(subject, heads=6, kv_heads=2),
        "multi-query": square_problem(subject, heads=4, kv_heads=1),
        "value-width": square_problem(subject, value_dim=6),
    }
    if subject.adapter.causal and subject.adapter.mask:
        mask = masked_problem(subject)
        assert mask.visible is not None
        visible = mask.visible.clone()
        visible[..., 0] = True
        made["causal-mask"] = replace(mask, causal=True, visible=visible)
    return made


def refusals(subject: Subject) -> dict[str, str]:
    """feature -> what the function says when it is asked for something that it may refuse without being wrong."""
    lacks = subject.adapter.lacks
    said = {
        feature: takes(subject, problem)
        for feature, problem in optional_problems(subject).items() if feature not in lacks
    }  # fmt: skip
    try:
        subject.call(square_problem(subject), change=lambda _, x: x.transpose(-1, -2).contiguous().transpose(-1, -2))
    except CallError as error:
        said["strides"] = str(error)
    return {feature: text for feature, text in said.items() if text is not None}


def takes(subject: Subject, problem: Problem) -> str | None:
    """None where the call gives an output of the right shape, else what it says instead."""
    try:
        subject.call(problem)
    except CallError as error:
        return str(error)
    return None


def has_onnx() -> bool:
    """Whether ONNX's cases can be had."""
    return find_spec("onnx") is not None


def sees_whom(subject: Subject, problem: Problem) -> Tensor:
    """(b, t, s): whether output t moves when value s does, in any head."""
    before, columns = subject.call(problem), []
    for token in range(problem.k.shape[2]):
        v = problem.v.clone()
        v[:, :, token] += 3.0
        columns.append(_moved(before, subject.call(replace(problem, v=v))).any(-1).any(1))
    return torch.stack(columns, -1)


def moves(subject: Subject) -> bool:
    """Whether anything moves when a value does: under a mask that hides everything, nothing would."""
    try:
        return bool(sees_whom(subject, square_problem(subject)).any())
    except CallError:
        return False


def _moved(before: Tensor, after: Tensor) -> Tensor:
    return ~torch.isclose(before.double(), after.double(), rtol=1e-6, atol=1e-6, equal_nan=True)


def settle_layout(subject: Subject, *, told: bool) -> tuple[Adapter, str]:
    """The order of the axes of inputs and output; CallError where the call fails or the output has another shape.

    With four axes, two of them may be tokens and heads either way: the value at (0, 0, 0) is moved, and the axis along
    which several outputs move is that of the tokens.
    """
    adapter, problem = subject.adapter, square_problem(subject)
    given = subject.arguments(problem)
    out = _raw(subject, given)
    shape = tuple(problem.q.shape)
    fits = [order for order in _orders(adapter.layout) if packed_shape(shape, order) == tuple(out.shape)]
    if not fits:
        raise CallError(
            f"q, k, v of shape {tuple(as_tensor(given[adapter.names['q']]).shape)} gave an output of shape {tuple(out.shape)}",
            kind="shape",
        )  # fmt: skip
    if adapter.layout != "bhtd" or told:
        return replace(adapter, out_layout=fits[0]), "told" if told else "tried"
    v = problem.v.clone()
    v[0, 0, 0] += 3.0
    along = _moved(out, _raw(subject, subject.arguments(replace(problem, v=v))))
    heads_axis, tokens_axis = (1, 2) if fits[0] == "bhtd" else (2, 1)
    if fits[0] == "btd" or _spread(along, tokens_axis) >= _spread(along, heads_axis):
        return replace(adapter, out_layout=fits[0]), "tried"
    # what stood where heads stand for us was mixed: these are the tokens
    return replace(adapter, layout="bthd", out_layout="bthd" if fits[0] == "bhtd" else "bhtd"), "tried"


def _raw(subject: Subject, given: dict[str, object]) -> Tensor:
    made = subject.run(given)
    return as_tensor(made[0] if isinstance(made, tuple | list) and len(made) else made)


def _orders(layout: str) -> tuple[str, ...]:
    return {
        "bhtd": ("bhtd", "bthd", "btd"),
        "bthd": ("bthd", "bhtd", "btd"),
        "htd": ("htd", "thd"),
        "thd": ("thd", "htd"),
    }.get(layout, (layout,))


def _spread(moved: Tensor, axis: int) -> int:
    """How many places along `axis` moved."""
    others = [a for a in range(moved.dim()) if a != axis]
    return (
        int(moved.any(dim=others[0]).any(dim=others[1] - (others[1] > others[0])).any(-1).sum())
        if moved.dim() == 4
        else 0
    )


def mask_is(subject: Subject) -> bool:
    """Whether the mask, said with the adapter's polarity and axes, shows what it should."""
    problem = masked_problem(subject)
    try:
        found = sees_whom(subject, problem)
        without = sees_whom(subject, replace(problem, visible=None))
    except CallError:
        return False
    assert problem.visible is not None
    return bool((found == (problem.visible[:, 0].cpu() & without)).all())


def padding_polarity(subject: Subject) -> str:
    """ "visible" or "blocked" as the padding mask works, "" where neither."""
    problem = square_problem(subject)
    keep = some_mask(torch.Generator().manual_seed(3), problem.q.shape[0], problem.k.shape[2])
    for polarity in ("visible", "blocked"):
        tried = replace(subject, adapter=replace(subject.adapter, padding=polarity))
        try:
            found = sees_whom(tried, subject.prepare(replace(problem, keep=keep)))
            without = sees_whom(tried, problem)
        except CallError:
            continue
        if bool((found == (keep[:, None, :] & without)).all()):
            return polarity
    ways = (replace(subject, adapter=replace(subject.adapter, padding=polarity)) for polarity in ("visible", "blocked"))
    known = next((way for way in ways if has_a_known_fault(way, replace(problem, keep=keep))), None)
    return known.adapter.padding if known else ""


def has_a_known_fault(subject: Subject, problem: Problem) -> bool:
    """Whether the answer is what one known fault gives."""
    problem = subject.prepare(problem)
    try:
        found = subject.call(problem).detach().double()
    except CallError:
        return False
    return subject.twin(problem, found, subject.allowed(subject.answer(problem))) is not None


def adds_floats(subject: Subject) -> bool:
    """Whether floats given as the mask are added: -inf blocks, 1.5 hides nothing and changes something."""
    problem = biased_problem(subject)
    assert problem.bias is not None
    blocking = replace(problem, bias=torch.where(problem.bias > 0, 0.0, -torch.inf).to(problem.bias))
    try:
        finite, hidden = sees_whom(subject, problem), sees_whom(subject, blocking)
        without = sees_whom(subject, replace(problem, bias=None))
        changed = _moved(subject.call(problem), subject.call(replace(problem, bias=None))).any()
    except CallError:
        return False
    shown = problem.bias[:, 0].cpu() > 0
    return bool(changed) and bool((finite == without).all()) and bool((hidden == (shown & without)).all())
