"""What the tables of the x-ray and of `manyheads heads` say alike of roles."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol

from manyheads.heads.roles.evidence import SINK
from manyheads.report.value import Column, Table

if TYPE_CHECKING:
    from manyheads.heads.roles.record import NotTested

__all__ = ["CONTROLS", "ORDER", "SHOWN_FIRST", "by_reason", "controls", "correction", "counted", "role_name", "two"]

CONTROLS = "What is a role scored by, and what is it held against?"
ORDER = (
    "heads were chosen and put in order on one half of the windows and scored on the other, where scores need not fall"
)
SHOWN_FIRST = ("induction", "duplicate token", "previous token")
"""The map that is open first is of the clearest head of the first of these roles: few heads have it, and it can be seen."""
_WITH_DISTANCE = ("fixed offset", "positional", "local window")


class Judged(Protocol):
    """A role with what it was scored by."""

    @property
    def role(self) -> str: ...
    @property
    def score_is(self) -> str: ...
    @property
    def control(self) -> str: ...


class Tested(Protocol):
    """The tests of all roles together."""

    @property
    def least_effect(self) -> float: ...
    @property
    def fdr(self) -> float: ...
    @property
    def tests(self) -> int: ...


def controls(roles: Iterable[Judged], holding: Iterable[int]) -> Table:
    """What each role's score is a share of, what it is held against, and how many heads hold it."""
    rows = tuple((one.role, one.score_is, one.control, str(count)) for one, count in zip(roles, holding, strict=True))
    columns = (Column("role"), Column("score, a share"), Column("control"), Column("heads that hold it", "right"))
    return Table(CONTROLS, columns, rows)


def counted(labels: Iterable[str], sinks: int) -> list[str]:
    """How many heads have a role, and of which the first token is the role that they hold: `sinks` in all."""
    every = list(labels)
    alone = sum(label == SINK for label in every)
    found = [f"{sum(label not in ('', SINK) for label in every)} of {len(every)} heads have a role beside the sink"]
    if sinks:
        found.append(f"the sink: {sinks} heads look at the first token, {alone} of which have no other role")
    return found


def correction(own: Tested) -> str:
    """How many tests there were, and what was done about it."""
    return (
        f"a role is {own.least_effect:g} or more above its control, at a false discovery rate of {own.fdr:.0%} over all "
        f"{own.tests:,} tests (Benjamini and Hochberg), with windows as units: verdicts are about this text"
    )


def role_name(role: str, detail: str) -> str:
    """A role, with the distance where that is a head's own."""
    return f"{role}, {detail}" if role in _WITH_DISTANCE and detail else role


def by_reason(missing: Iterable[NotTested]) -> list[str]:
    """Roles that were not tested, those together that share a reason."""
    found: dict[str, list[str]] = {}
    for one in missing:
        found.setdefault(one.why, []).append(one.role)
    return [f"not tested: {', '.join(names)}: {why}" for why, names in found.items()]


def two(value: float) -> str:
    """A share, "-" where there is none."""
    return f"{value:.2f}" if math.isfinite(value) else "-"
