"""A case and what comes of it, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from manyheads.check.problem import Problem, Sizes

if TYPE_CHECKING:
    import torch

    from manyheads.check.subject import Subject

__all__ = ["Case", "Finding", "Judge", "Note", "Outcome", "Skip", "anything", "self_attention"]


_ONE = Sizes()


@dataclass(frozen=True)
class Finding:
    """A fault: what was expected, what was found, why that is, and the call that shows it.

    `cause` names the fault in a word or two, so that the same fault is recognised on another input; `resembles` are
    public reports of this very fault, where there are any. `demand`: the feature under whose name this is asked for,
    where it is a weakness rather than a fault; "" for a fault.
    """

    expected: str
    found: str
    cause: str = ""
    explanation: str = ""
    code: str = ""
    line: int | None = None
    resembles: tuple[str, ...] = ()
    demand: str = ""


@dataclass(frozen=True)
class Skip:
    """A judge that cannot judge, and why."""

    reason: str


@dataclass(frozen=True)
class Note:
    """The function is right, and this is to be said of it."""

    text: str


Judge = Callable[["Subject", Problem], "Finding | Skip | Note | None"]
"""Looks at one problem: None where the function is right."""


def anything(sizes: Sizes) -> bool:
    """Grouped heads must divide; otherwise all sizes go."""
    return sizes.kv_heads > 0 and sizes.heads % sizes.kv_heads == 0


def self_attention(sizes: Sizes) -> bool:
    """As many queries as keys, one head count, one width."""
    return sizes.queries == sizes.keys and sizes.heads == sizes.kv_heads and sizes.dim == sizes.value_dim


@dataclass(frozen=True, kw_only=True)
class Case:
    """One question to an attention function.

    name        what it is called on the command line
    suite       the group it belongs to
    proves      the sentence that is true when it passes
    build       makes the problem from sizes and a generator of random numbers
    judge       looks at the answer
    full        the sizes of the problem; a failure is then sought on the smallest, from `least` on
    also        other sizes at which it is asked, where functions are known to break: one query, a window of all keys
    valid       which sizes in between make sense
    needs       features without which the case is not tested
    demand      the feature under whose name it is asked, where failing is a weakness and no fault
    resembles   public reports of the same fault, owner/repo#N
    """

    name: str
    suite: str
    proves: str
    build: Callable[[Sizes, torch.Generator], Problem]
    judge: Judge
    full: Sizes
    least: Sizes = _ONE
    also: tuple[Sizes, ...] = ()
    valid: Callable[[Sizes], bool] = anything
    needs: tuple[str, ...] = ()
    demand: str = ""
    resembles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """What came of a case: "pass", "weak", "fail" (it is wrong) or "not tested"; `reason` says why it was not, or adds to
    a pass."""

    name: str
    status: str
    reason: str = ""
    finding: Finding | None = None
    seconds: float = 0.0
