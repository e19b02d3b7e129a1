"""HeadsOverview: what `manyheads heads` found, as one frozen value; docs/heads-json.md is written from its fields.

A `head` is an address, `layer:head` counted from 0, with its `stage/` in front in an encoder-decoder model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from manyheads.heads.left_out import LeftOut
from manyheads.heads.roles.record import RolesTested

__all__ = [
    "AttentionFigures",
    "Chance",
    "HeadFigures",
    "HeadInDetail",
    "HeadsOverview",
    "ImportanceSaid",
    "Method",
    "TextRead",
]

Method = Literal["first-order", "zero", "mean", "resample"]


@dataclass(frozen=True)
class TextRead:
    """What was read."""

    name: str
    sha256: str
    tokens: int
    window: int
    """tokens of a window at most"""
    windows: int
    goes_on: bool
    """whether the text has more than those tokens: `--tokens` says how many are read"""
    left_out: tuple[LeftOut, ...]
    around: str
    """what stood around each window"""
    decoder_reads_the_same: bool
    """whether a decoder was given the text that the encoder read"""


@dataclass(frozen=True, kw_only=True)
class AttentionFigures:
    """Where attention goes; a share is null where no query sees such a key."""

    mass: Mapping[str, float]
    """shares of attention by kind of key: `first`, `self`, `previous`, `next`, `duplicate`, `induction`, `delimiters`, `rare`"""
    entropy: float
    """in nats"""
    distance: float
    """mean distance of query and key, in tokens"""
    spread: float
    """standard deviation of the logits"""
    sink: float
    """share that goes to no key"""
    output_norm: float
    """norm of the head's output"""


@dataclass(frozen=True, kw_only=True)
class _Address:
    head: str
    stage: str
    layer: int
    number: int


@dataclass(frozen=True, kw_only=True)
class HeadFigures(AttentionFigures, _Address):
    """One head."""

    top_offset: int | None
    """the distance that most queries have their strongest key at; `reach` and -`reach` stand for so far or farther"""
    top_offset_share: float
    """the share of queries that do"""
    role: str
    """empty where none beats its control"""
    importance: float
    """by `importance.method`; null where it was not measured"""
    importance_low: float
    """of the 95% interval, where heads were taken out on several windows"""
    importance_high: float
    told_apart: bool | None
    """whether the loss is higher without it, at a false discovery rate of 5% over all heads"""


@dataclass(frozen=True, kw_only=True)
class _Layer:
    stage: str
    layer: int
    queries: int
    """queries that were seen"""


@dataclass(frozen=True, kw_only=True)
class Chance(AttentionFigures, _Layer):
    """A head of that layer to which all keys are alike."""


@dataclass(frozen=True)
class HeadInDetail:
    """One head by distance, query minus key, from -`reach` to `reach`."""

    head: str
    offsets: tuple[float, ...]
    """shares of its attention"""
    offsets_by_chance: tuple[float, ...]
    top_offsets: tuple[float, ...]
    """shares of queries that have their strongest key there"""


@dataclass(frozen=True)
class ImportanceSaid:
    """How importance was measured."""

    method: Method
    loss: float
    """of the whole model"""
    objective: str
    """what the model is judged by, in a word"""
    loss_is: str
    """the same in words"""
    unit: str


@dataclass(frozen=True)
class HeadsOverview:
    """Statistics of every head on a text, the roles that beat their control, and their importance."""

    schema: str
    """`manyheads.heads/1`"""
    model: str
    seed: int
    dtype: str
    device: str
    text: TextRead
    reach: int
    """the largest distance that is told apart"""
    heads: tuple[HeadFigures, ...]
    chance: tuple[Chance, ...]
    one: HeadInDetail | None
    """the head of `--head`"""
    uncalled: tuple[str, ...]
    """attention modules that did not run"""
    roles: RolesTested | None
    without_roles: str
    """why roles were not tested"""
    importance: ImportanceSaid | None
    without_importance: str
    """why importance was not measured"""
    asked: str
    """the model as it was asked for, empty for the demo model"""

    def __repr__(self) -> str:
        return (
            f"HeadsOverview({self.model}: {len(self.heads)} heads on {self.text.tokens:,} tokens of {self.text.name})"
        )
