"""What an x-ray found of heads, as frozen values: the part `heads` of an `XRay`.

A `head` is an address, `layer:head` counted from 0, with its `stage/` in front in an encoder-decoder model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from manyheads.heads.left_out import LeftOut, NotMeasured
from manyheads.heads.page.maps import HeadMaps
from manyheads.heads.roles.record import NotTested
from manyheads.report.jsonform import NOT_IN_JSON, WHERE_ASKED

__all__ = [
    "BudgetSpent", "FirstPosition", "HeadAtFirst", "HeadImportance", "HeadWithRole", "HeadsFound", "ImportanceFound", "MapsFound",
    "Removable", "RemovableHeads", "RoleFound", "RolesFound",
]  # fmt: skip


@dataclass(frozen=True)
class HeadWithRole:
    """A head that holds a role."""

    head: str
    score: float
    control: float
    """the score of the control"""
    low: float
    """of the 95% interval"""
    high: float
    q_value: float
    detail: str
    """at which distance, how near, in which direction, or the figures of each kind of pronouns"""


@dataclass(frozen=True)
class RoleFound:
    """One role."""

    role: str
    score_is: str
    control: str
    """what it was held against"""
    holding: int
    """heads that hold it"""
    heads: tuple[HeadWithRole, ...]
    """the clearest, and those of which it is the label"""


@dataclass(frozen=True)
class RolesFound:
    """What each head does."""

    reason: Literal[""]
    """why there are none; empty here"""
    fdr: float
    """the false discovery rate of all verdicts"""
    least_effect: float
    """how far above its control a score must be (`--least-effect`)"""
    tests: int
    """over how many tests `fdr` holds"""
    bos: str
    """what stood around the windows of text"""
    windows: int
    window_tokens: int
    """how long each was"""
    roles: tuple[RoleFound, ...]
    not_tested: tuple[NotTested, ...]
    left_out: tuple[LeftOut, ...]
    labels: Mapping[str, str]
    """the role of each head, empty where none beats its control"""


@dataclass(frozen=True)
class HeadImportance:
    """How much one head matters."""

    head: str
    score: float
    """`loss_without`, or `expected` where it was not taken out"""
    loss_without: float | None
    """what the loss rises by without it, at all positions but the first of a window; null where it was not taken out"""
    loss_low: float
    """of the 95% interval"""
    loss_high: float
    q_value: float
    """of Benjamini and Hochberg over all heads, 1 where it was not measured on whole windows"""
    told_apart: bool
    """the loss is higher without it, at the rate `fdr`"""
    exact_windows: int
    """whole windows it was taken out on"""
    screened: bool
    """whether it was taken out on the short ones"""
    expected: float | None
    """`loss_without` to first order; null for all heads where there is none"""
    first_order: float | None
    """mean of the absolute derivative of the loss by a factor on the head's output; null like `expected`"""


@dataclass(frozen=True)
class BudgetSpent:
    """Of time."""

    seconds: float | None
    """null with `--exact`"""
    stopped: bool
    """whether they ran out"""


@dataclass(frozen=True)
class HeadAtFirst:
    """A head that gives its mean at the first position of a window alone."""

    head: str
    loss: float
    """what the loss rises by"""
    low: float
    """of the 95% interval"""
    high: float
    largest: float
    """in one window"""


@dataclass(frozen=True)
class FirstPosition:
    """What hangs on the first position of a window."""

    reason: str
    """why there is none"""
    windows: int | None = field(default=None, metadata=WHERE_ASKED)
    tokens: int | None = field(default=None, metadata=WHERE_ASKED)
    """of their beginnings"""
    heads: tuple[HeadAtFirst, ...] = ()


@dataclass(frozen=True)
class ImportanceFound:
    """How much each head matters."""

    reason: Literal[""]
    """why that is not known; empty here"""
    method: Literal["mean"]
    """what a head gives instead of its output"""
    heads: tuple[HeadImportance, ...]
    told_apart: int
    """heads that are told apart from 0"""
    fdr: float
    """the false discovery rate"""
    baseline: float
    """the loss of the whole model, in `unit`; 0 for `drift`"""
    exact_heads: int
    """how many were taken out on whole windows"""
    exact_windows: int
    """on how many of them"""
    screened_heads: int
    """how many were taken out on short windows before; 0 where all were measured at once"""
    screen_windows: int
    """how many these are"""
    screen_tokens: int
    """how long"""
    windows: int
    """windows of text that first order was taken on"""
    window_tokens: int
    """their length"""
    budget: BudgetSpent
    rank_correlation: float | None
    """Spearman's of `first_order` with `loss_without`; null where there are too few"""
    expected_correlation: float | None
    """Spearman's of `expected` with `loss_without`"""
    first_order_seconds: float | None
    """null where there are no such scores"""
    exact_seconds: float
    prefix_reused: bool
    """whether layers in front of a head were computed once"""
    objective: str
    """what the model is judged by, in a word ([heads.md](heads.md#what-importance-is-about)); only `next token` has a perplexity"""
    loss_is: str
    """the same in words"""
    unit: str
    """of the figures"""
    first_position: FirstPosition


@dataclass(frozen=True)
class RemovableHeads:
    """How many heads can go together."""

    text: str
    """what it is judged on"""
    how: Literal["zero", "mean"]
    """what a head gives instead"""
    heads: int
    """how many can go"""
    low: float
    """of the 95% interval over windows; more heads are tried until it is not cut by that"""
    high: float
    beyond: bool
    """all could go"""
    total: int
    counts: tuple[int, ...]
    """what was measured: with so many heads gone"""
    losses: tuple[float, ...]
    """these losses"""


@dataclass(frozen=True)
class Removable:
    """How many heads can go for a share of loss more."""

    reason: str
    """why that is not known; there is no share of `drift`"""
    share: float | None = field(default=None, metadata=WHERE_ASKED)
    """of loss that may be added"""
    texts: tuple[RemovableHeads, ...] = ()


@dataclass(frozen=True)
class MapsFound:
    """What the page shows of where heads look; the maps themselves are not in this object."""

    reason: Literal[""]
    """why there are none; empty here"""
    tokens: int
    heads: int
    rows: int
    """of each head: queries"""
    keys: int
    """the strongest of each query"""
    blocks: int
    """of the text, along either side of a map"""
    seconds: float
    pictures: HeadMaps | None = field(default=None, metadata=NOT_IN_JSON, repr=False, compare=False)
    texts: Mapping[str, list[str]] = field(default_factory=dict, metadata=NOT_IN_JSON, repr=False, compare=False)


@dataclass(frozen=True)
class HeadsFound:
    """What the heads do. Of a part that could not be had, `reason` says why, and its other keys may be absent."""

    roles: RolesFound | NotMeasured
    importance: ImportanceFound | NotMeasured
    removable: Removable
    maps: MapsFound | NotMeasured
    seconds: float
    """how long all of it took"""
