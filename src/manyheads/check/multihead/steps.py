"""A sequence put to an object a few tokens at a time, its cache handed on; and what a wrong cache shows.

Caches come in two ways: given to a call and returned by it, or kept inside of the object. What is given first is None;
what is given next is what came back beside the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from manyheads.check.multihead.problem import Multihead, join, remade
from manyheads.check.multihead.subject import MultiheadSubject
from manyheads.check.problem import answer
from manyheads.check.subject import CallError, called

__all__ = ["by_steps", "explained_by_steps", "settle_cache"]

_RESETS = ("reset_cache", "clear_cache", "reset_kv_cache", "reset", "empty_cache", "init_cache")


def settle_cache(subject: MultiheadSubject, problem: Multihead) -> str:
    """ "passed" or "kept" as its cache works, "" where a call with it gives no output or no cache."""
    try:
        by_steps(subject, subject_problem(subject, problem), [2, 1])
    except CallError:
        return ""
    return "passed" if "cache" in subject.adapter.names else "kept"


def subject_problem(subject: MultiheadSubject, problem: Multihead) -> Multihead:
    """The problem prepared and causal."""
    prepared = subject.prepare(replace(problem, causal=True))
    assert isinstance(prepared, Multihead)
    return prepared


def by_steps(subject: MultiheadSubject, problem: Multihead, sizes: list[int], *, fresh: bool = True) -> Tensor:
    """The outputs (b, 1, t, n) of calls with so many tokens each, of an object of its own where it is `fresh`. CallError where
    a call returns no cache."""
    outs, past, at = [], None, 0
    if fresh and subject.plan is not None:
        subject = replace(subject, made={})
    thing = subject.ready_object(problem) if subject.adapter.kind != "function" else None
    _reset(subject, thing)
    for number, size in enumerate(sizes):
        part = remade(problem, x=problem.x[:, at : at + size])
        given = subject.arguments(part) | _of_cache(subject, past, at)
        made = subject.run_in(thing, problem, given)
        outs.append(subject.output(made, part))
        past = _returned(made, size, at) if "cache" in subject.adapter.names else None
        if past is None and "cache" in subject.adapter.names and number + 1 < len(sizes):
            raise CallError("returned no cache beside the output", kind="no cache")
        at += size
    return torch.cat(outs, 2)


def _reset(subject: MultiheadSubject, thing: Any) -> None:
    """Empties what the object keeps, by its own method; without one, what it holds is a fault of its own."""
    for name in _RESETS:
        if callable(getattr(thing, name, None)):
            with called(subject):
                getattr(thing, name)()
            return


def _of_cache(subject: MultiheadSubject, past: Any, at: int) -> dict[str, Any]:
    names = subject.adapter.names
    values = {"cache": past, "use_cache": True, "offset": at}
    return {names[role]: value for role, value in values.items() if role in names}


def _returned(made: Any, size: int, at: int) -> Any:
    """What came back beside the output and is a cache: the last thing that is no tensor, two tensors alike (k and v), or one
    that is no map of weights (.., queries, keys)."""
    rest = [thing for thing in made[1:] if thing is not None] if isinstance(made, tuple | list) else []
    nested = [thing for thing in rest if not hasattr(thing, "shape")]
    if nested:
        return nested[-1]
    if len(rest) == 2 and rest[0].shape == rest[1].shape:
        return (rest[0], rest[1])
    kept = [thing for thing in rest if tuple(thing.shape[-2:]) not in ((size, size), (size, at + size))]
    return kept[-1] if kept else None


def explained_by_steps(problem: Multihead, found: Tensor, allowed: float, sizes: list[int]) -> tuple[str, str]:
    """Name and explanation of what a wrong cache shows, by which tokens each step sees."""
    for name, says, wrong in _wrong_steps(problem, sizes):
        if torch.allclose(wrong, found.double(), rtol=0.0, atol=allowed, equal_nan=True):
            return name, says
    return "steps differ", "a token with a cache must give what the whole sequence gave"


def _wrong_steps(problem: Multihead, sizes: list[int]) -> Iterator[tuple[str, str, Tensor]]:
    for name, says, visible in _views(sizes):
        core = replace(problem.core, causal=False, visible=visible[None, None])
        yield name, says, join(answer(core), problem)[:, None]
    for name, says, other in (
        ("cached values are keys", "the keys are kept where the values should be", "v"),
        ("cached keys are values", "the values are kept where the keys should be", "k"),
    ):
        if problem.core.k.shape == problem.core.v.shape:
            yield name, says, join(torch.cat(list(_mixed(problem, sizes, other)), 2), problem)[:, None]


def _mixed(problem: Multihead, sizes: list[int], role: str) -> Iterator[Tensor]:
    """The heads' outputs call by call, where what is kept as k or v is the other of the two."""
    core, at = problem.core, 0
    for size in sizes:
        k, v, end = core.k[:, :, : at + size].clone(), core.v[:, :, : at + size].clone(), at + size
        if role == "v":
            v[:, :, :at] = core.k[:, :, :at]
        else:
            k[:, :, :at] = core.v[:, :, :at]
        yield answer(replace(core, q=core.q[:, :, at:end], k=k, v=v, causal=True))
        at = end


def _views(sizes: list[int]) -> Iterator[tuple[str, str, Tensor]]:
    tokens = sum(sizes)
    seen, key = torch.ones(tokens, tokens, dtype=torch.bool), torch.arange(tokens)
    start = torch.cat([torch.full((size,), sum(sizes[:number])) for number, size in enumerate(sizes)])[:, None]
    yield (
        "cache ignored", ("a step sees the tokens of its own call alone: what was kept is overwritten, or never read; new keys and "
        "values are appended to those before"), seen.tril() & (key >= start),
    )  # fmt: skip
    yield (
        "causal top-left", ("the first query of a step sees the first token alone: the causal mask starts at the top-left corner, "
        "where with a cache the queries are the last positions"), key <= key[:, None] - start,
    )  # fmt: skip
    yield "new token missing", "a step sees what was kept, and not its own token", seen.tril(-1)
    yield (
        "cache of one token",
        "a step sees its own token and the one before: the cache holds the last token only",
        seen.tril().triu(-1),
    )
    late = seen.tril()
    late[1:, 0] = False
    yield "first token lost", "the first token is missing from the cache", late
    yield "causal ignored", "tokens of one call see each other's future", seen
