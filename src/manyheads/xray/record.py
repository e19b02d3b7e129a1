"""XRay: what an x-ray found, as one frozen value; docs/xray-json.md is written from its fields.

None means that the question does not apply; a number that is not finite is null in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from manyheads.cost.price_record import Price
from manyheads.models.parameter_count import ParameterCheck
from manyheads.models.resident_bytes import CacheCheck
from manyheads.report.jsonform import WHERE_ASKED, key
from manyheads.xray.heads_record import HeadsFound

__all__ = [
    "CacheCurve",
    "CurveSeries",
    "EncoderRun",
    "Shape",
    "TextFound",
    "TextScores",
    "Timings",
    "WindowLoss",
    "XRay",
]


@dataclass(frozen=True)
class Shape:
    """The model's measures, those of its first attention where layers differ."""

    layers: int
    encoder_layers: int
    """in front of a decoder"""
    d_model: int
    num_attention_heads: int
    num_key_value_heads: int | None
    head_dim: int
    vocab_size: int
    context: int
    stored_dtype: str
    stored_bytes: int | None
    attention_implementation: str


@dataclass(frozen=True)
class WindowLoss:
    """One window."""

    tokens: int
    loss: float


@dataclass(frozen=True)
class TextScores:
    """What the model makes of tokens, in windows that do not overlap."""

    scored_tokens: int
    loss: float
    """nats a token, the mean over the scored ones"""
    perplexity: float
    """its exponential"""
    windows: tuple[WindowLoss, ...]
    seconds: float


@dataclass(frozen=True)
class EncoderRun:
    """One forward run of an encoder."""

    tokens: int
    output_shape: tuple[int, ...]
    finite: bool
    seconds: float


@dataclass(frozen=True)
class TextFound:
    """The text that was read, and what the model makes of it."""

    name: str
    sha256: str
    shipped: bool
    """whether it is the one that comes with the package"""
    tokens: int
    """tokens that were read, 0 where the model has no tokenizer of its own"""
    window: int
    """tokens of a window at most; windows do not overlap"""
    first_token_of_window_scored: Literal[False]
    """there is nothing to guess it from"""
    bos: bool
    """whether a beginning-of-text token stood before each window (`--bos`); the same tokens are scored either way"""
    tokenizer_adds_bos: bool
    """whether the tokenizer, left alone, would have added one"""
    reason: str
    """why there is no perplexity of left-to-right prediction, empty where there is"""
    scores: TextScores | None
    shuffled: TextScores | None
    """the same of the same tokens in an order that `seed` decides"""
    goes_on: bool
    """whether the text has more than those tokens: `--tokens` says how many are read"""
    times_more_perplexed_when_shuffled: float | None = field(default=None, metadata=WHERE_ASKED)
    """the quotient of the two perplexities"""
    forward: EncoderRun | None = field(default=None, metadata=WHERE_ASKED)
    """of an encoder"""


@dataclass(frozen=True)
class Timings:
    """Seconds that the work took."""

    load_seconds: float
    cache_seconds: float
    parts_seconds: Mapping[str, float]
    """by part: `heads`"""


@dataclass(frozen=True)
class CurveSeries:
    """A line of the plot."""

    name: str
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class CacheCurve:
    """What the plot shows: cache bytes of one sequence against its length."""

    kv_dtype: str | None = field(default=None, metadata=WHERE_ASKED, kw_only=True)
    contexts: tuple[int, ...]
    series: tuple[CurveSeries, ...]


@dataclass(frozen=True)
class XRay:
    """A real model: its shape, whether it holds what was predicted, what it makes of a text, what its heads do, what it costs."""

    schema: str
    """`manyheads.xray/1`"""
    model: str
    """short name"""
    source: str
    """the path or hub id it was read from"""
    family: str
    """the family that read it"""
    class_name: str = field(metadata=key("class"))
    """its class in transformers"""
    shape: Shape
    parameters: ParameterCheck
    text: TextFound
    cache: CacheCheck
    timings: Timings
    agrees: bool
    """whether everything that was compared is equal; the exit status is 0 then, else 1"""
    notes: tuple[str, ...]
    """what was assumed, left out or found, a sentence each"""
    cost: Price
    """the whole object of `manyheads cost` ([cost-json.md](cost-json.md)), cache in bf16"""
    cache_curve: CacheCurve
    command: str
    date: str
    """with its offset from UTC"""
    seed: int
    dtype: str
    device: str
    machine: Mapping[str, Any]
    """`processor`, `cores`, `threads` (of torch), `memory_bytes`, `system`, `accelerator`"""
    versions: Mapping[str, str]
    """of manyheads, Python and the packages that took part"""
    unpacked: str
    """the cached folder that a dequantised GGUF file was read from; empty where it was not"""
    next_command: str
    """worth typing next"""
    heads: HeadsFound | None = field(default=None, metadata=WHERE_ASKED)
    """absent with `--no-heads`"""

    def __repr__(self) -> str:
        found = "as predicted" if self.agrees else "NOT as predicted"
        return f"XRay({self.model}: {self.parameters.loaded:,} parameters, {found})"
