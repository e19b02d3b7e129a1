"""PruningReport: what `manyheads prune` does and saves and loses, as one frozen value; docs/prune-json.md is written from its
fields.

A head is an address, `layer:head` counted from 0 as in the model before its first pruning, with its `stage/` in front in an
encoder-decoder model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from manyheads.checkpoints.pruned import FormName
from manyheads.heads.left_out import NotMeasured

__all__ = [
    "UNMEASURED",
    "AtInit",
    "FormBytes",
    "HowChosen",
    "LayerPruning",
    "LossFigures",
    "Losses",
    "PruningReport",
    "SizesNow",
    "WrittenFolder",
]  # fmt: skip


@dataclass(frozen=True)
class LayerPruning:
    """One attention module that heads can go from."""

    stage: str
    layer: int
    removed: tuple[int, ...]
    """all heads that are gone then, numbered as before the first pruning"""
    new: tuple[int, ...]
    """those of them that go now"""
    kept: tuple[int, ...]
    kv_heads_before: int
    kv_heads_needed: int


@dataclass(frozen=True)
class SizesNow:
    """Bytes of the model as it is, in `weight_dtype`."""

    weights: int
    cache_a_token: int


@dataclass(frozen=True)
class FormBytes:
    """What one form of the smaller model would hold."""

    form: FormName
    weights: int | None
    """bytes; null where there is no such form"""
    cache_a_token: int | None
    zeros: int | None
    """heads of zeros that stay in it"""
    why: str
    """why it is this one, or why there is none"""


@dataclass(frozen=True)
class LossFigures:
    """A loss with and without the heads."""

    before: float
    after: float
    change: float
    interval: tuple[float, float] | None
    """of 95%, over windows; null for one window"""


@dataclass(frozen=True)
class AtInit:
    """The same on the same architecture at initialisation."""

    seed: int
    same_heads: LossFigures
    own_heads: LossFigures | None
    """with heads that are chosen there; null where they are named"""


@dataclass(frozen=True)
class Losses:
    """What is lost, on windows of text that nothing was chosen on."""

    reason: Literal[""]
    """why no loss was measured; empty here. With a reason the other keys are absent"""
    text: str
    text_sha256: str
    tokens: int
    windows: int
    goes_on: bool
    """whether the text has more than was read of it"""
    before: float
    after: float
    change: float
    interval: tuple[float, float] | None
    """of 95%, over windows; null for one window"""
    init: AtInit | None
    """with `--compare-init`"""
    objective: str
    """what the model is judged by, in a word ([heads.md](heads.md#what-importance-is-about))"""
    loss_is: str
    """the same in words"""
    unit: str


@dataclass(frozen=True)
class WrittenFolder:
    """The folder that was written."""

    folder: str
    form: FormName
    why: str
    model_type: str | None
    tensor_bytes: int
    predicted_bytes: int
    largest_difference: float | None
    """from the logits of the model whose heads are masked"""
    largest_logit: float | None
    checked_in: str
    """float32, or float64 where the model magnifies float32's rounding"""
    largest_difference_float32: float | None


@dataclass(frozen=True)
class HowChosen:
    """How heads were chosen, and what that loses: what an export says of itself."""

    chosen: str
    rounds: int
    losses: Losses | NotMeasured


UNMEASURED = HowChosen("named", 0, NotMeasured("not measured"))


@dataclass(frozen=True)
class PruningReport:
    """Heads that go, what that saves in each form, and what it loses."""

    schema: str
    """`manyheads.prune/1`"""
    model: str
    source: str
    chosen: str
    """how"""
    rounds: int
    """times that importance was asked for"""
    heads_before: int
    heads_removed: int
    removed: tuple[str, ...]
    gone_before: tuple[str, ...]
    """those asked for that had gone before"""
    gone_earlier: int
    """heads that went in earlier prunings"""
    staged: bool
    """whether the model has several stages"""
    layers: tuple[LayerPruning, ...]
    weight_dtype: str
    bytes_before: SizesNow
    forms: tuple[FormBytes, ...]
    losses: Losses | NotMeasured
    written: WrittenFolder | None
    """with `--output`"""
    stored_bytes: int | None
    """of the file, as it lies there"""
    stored_dtype: str | None
    note: str
    """why nothing is smaller, empty where something is"""
    heads: str
    """those that go, as `--heads` takes them"""
    heads_that_save: str
    """where nothing is smaller: the least that would save something"""
    typed: str
    """the command without the heads"""

    def __repr__(self) -> str:
        return (
            f"PruningReport({self.model}: {self.heads_removed} of {self.heads_before} heads, chosen by {self.chosen})"
        )
