"""The roles of all heads as reports tell them: one frozen value, addresses for heads, all of it JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manyheads.heads.address import format_head
from manyheads.heads.left_out import LeftOut
from manyheads.heads.roles.detect import RoleReport
from manyheads.heads.roles.evidence import Evidence, Verdict

__all__ = ["HeadInRole", "NotTested", "RoleTested", "RolesTested", "not_tested", "roles_tested"]


@dataclass(frozen=True)
class NotTested:
    """A role that could not be tested."""

    role: str
    why: str


@dataclass(frozen=True)
class HeadInRole:
    """One head and one role."""

    head: str
    ahead: float
    """how far it is above the control on the half that choices were made on, which heads are put in order by"""
    chosen: float
    """the score on that half; all other figures are of the other"""
    score: float
    null: float
    """the score of the control"""
    low: float
    """of the 95% interval"""
    high: float
    p_value: float
    q_value: float
    detail: str
    """which offset, which direction"""
    verdict: Verdict
    """`holds`, or why not"""


@dataclass(frozen=True)
class RoleTested:
    """One role, and all heads that it was looked for in."""

    role: str
    score_is: str
    """what the score is a share of"""
    control: str
    """what it is held against"""
    units: int
    """windows, sentences or templates at least, which intervals and tests are over"""
    heads: tuple[HeadInRole, ...]


@dataclass(frozen=True)
class RolesTested:
    """All roles of all heads."""

    fdr: float
    """the false discovery rate of all verdicts"""
    least_effect: float
    """how far above its control a score must be"""
    tests: int
    """over how many tests `fdr` holds"""
    bos: str
    """what stood around each window, and who decided it"""
    seed: int
    windows: int
    window_tokens: int
    not_tested: tuple[NotTested, ...]
    left_out: tuple[LeftOut, ...]
    labels: Mapping[str, str]
    """the role of each head that has one"""
    roles: tuple[RoleTested, ...]


def roles_tested(found: RoleReport) -> RolesTested:
    """Everything that was tested, as reports tell it."""
    return RolesTested(
        found.fdr, found.least_effect, found.tests, found.bos, found.seed, found.windows, found.window_tokens,
        not_tested(found), found.left_out,
        {format_head(head): label for head, label in found.labels().items() if label},
        tuple(map(_role_tested, found.evidence)),
    )  # fmt: skip


def not_tested(found: RoleReport) -> tuple[NotTested, ...]:
    """The roles that could not be tested."""
    return tuple(NotTested(role, why) for role, why in found.not_tested)


def _role_tested(one: Evidence) -> RoleTested:
    rows = tuple(
        HeadInRole(
            format_head(role.head), float(one.ahead[at]), role.chosen, role.score, role.null, role.low, role.high,
            role.p_value, role.q_value, role.detail, role.verdict,
        )
        for at, role in enumerate(map(one.role, range(len(one.heads))))
    )  # fmt: skip
    return RoleTested(one.name, one.what, one.control, one.units, rows)
