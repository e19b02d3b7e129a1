"""ConversionReport: what `manyheads convert` makes of a model and what that loses, as one frozen value; docs/convert-json.md is
written from its fields.

The original is measured in the same run, on the same tokens. A loss is in nats a token, and a ratio is of perplexities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from manyheads.convert.calibration_text import TextPart
from manyheads.convert.regroup import LayerFigures, Method

__all__ = [
    "CacheSizes", "ConversionReport", "Host", "Interval", "Probe", "Sample", "TextLoss", "TokenKindLoss", "WrittenModel",
]  # fmt: skip

Interval = tuple[float, float]
TextKind = Literal["like the calibration text", "foreign"]
TokenKind = Literal["copied", "rare", "late", "other"]


@dataclass(frozen=True)
class TokenKindLoss:
    """The loss on the tokens of one kind."""

    kind: TokenKind
    """copied: continues a pair of tokens that stood in the window before; rare: among the tenth of the text's tokens that are
    the least frequent in it; late: in the second half of its window; other: none of these"""
    tokens: int
    before: float
    after: float


@dataclass(frozen=True)
class TextLoss:
    """What is lost on one text, on windows of it that nothing was fitted on."""

    text: str
    kind: TextKind
    sha256: str
    windows: int
    window: int
    """tokens of a window"""
    scored_from: int
    """the first position of a window that is scored: beyond 1, what lies behind the length that was calibrated"""
    tokens: int
    """tokens that are scored"""
    perplexity_before: float
    perplexity: float
    ratio: float
    """perplexity over that of the original"""
    ratio_interval: Interval | None
    """of 95%, over windows; null for one window"""
    worst_ratio: float
    """of the window that lost the most"""
    kl: float
    """KL(original || converted) of the next token's distribution, nats a token"""
    agreement: float
    """share of tokens after which both find the same next token the likeliest"""
    by_kind: tuple[TokenKindLoss, ...]


@dataclass(frozen=True)
class Probe:
    """A task that shows one ability, before and after, on random tokens."""

    name: Literal["induction", "recall"]
    before: float
    after: float
    meaning: str


@dataclass(frozen=True)
class Sample:
    """How both go on from the same beginning of a held-out text, the likeliest token at each step."""

    prompt: str
    before: str
    after: str


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of the KV cache."""

    a_token_before: int
    a_token: int
    held_before: int | None
    """by a cache of the original that holds `held_tokens`, as its tensors say; null where none is held"""
    held: int | None
    held_tokens: int


@dataclass(frozen=True)
class Host:
    """Which software loads the result, and whether it holds the small cache."""

    software: str
    loads: bool
    small_cache: bool
    tried: bool
    """whether it was loaded in this run; else the answer is what its source code says"""
    how: str


@dataclass(frozen=True)
class WrittenModel:
    """The folder that was written."""

    folder: str
    model_type: str
    architectures: tuple[str, ...]
    tensor_bytes: int
    largest_difference: float
    """of its logits, loaded by stock transformers' class, from those of the converted model in memory"""


@dataclass(frozen=True)
class ConversionReport:
    """A conversion and its loss."""

    schema: str
    model: str
    source: str
    typed: str
    method: Method
    kv_heads_before: int
    kv_heads: int
    query_heads: int
    weight_bytes_before: int
    weight_bytes: int
    cache: CacheSizes
    hosts: tuple[Host, ...]
    calibration: tuple[TextPart, ...]
    calibrated_window: int
    """tokens of a calibration window; 0 where the method reads no text"""
    bos: str
    """what stands before each window: nothing, or the special tokens of an encoder; no chat template is used"""
    layers: tuple[LayerFigures, ...]
    losses: tuple[TextLoss, ...]
    unmeasured: str
    """why no loss was measured; empty where one was"""
    embedding_cosine: float | None
    """of a model without a language head: mean cosine between its embedding of a held-out text and the original's"""
    probes: tuple[Probe, ...]
    samples: tuple[Sample, ...]
    most_ratio: float
    """the largest loss ratio that is accepted"""
    ratio: float | None
    """the largest of `losses`; null where none was measured"""
    accepted: bool
    written: WrittenModel | None
    seconds: float
    notes: tuple[str, ...]
