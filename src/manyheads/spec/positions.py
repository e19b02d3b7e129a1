"""Positions that act inside attention: rotary embedding and its scalings, ALiBi, relative buckets.

Learned and sinusoidal tables that are added to the embeddings belong to the stack, not to the layer.
"""

from __future__ import annotations

from manyheads.errors import SpecError
from manyheads.record import record
from manyheads.spec import check

__all__ = [
    "Alibi",
    "DynamicScaling",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "NoPositions",
    "NoScaling",
    "Positions",
    "RelativeBuckets",
    "Rope",
    "RopeScaling",
    "YarnScaling",
]


@record
class NoPositions:
    """Attention that knows no order (the embeddings may)."""


@record
class NoScaling:
    """Rotary angles as in the paper: position · base^(-2i/dim)."""


@record
class LinearScaling:
    """Positions divided by `factor` (arXiv 2306.15595)."""

    factor: float

    def __post_init__(self) -> None:
        check.number("rope factor", self.factor)


@record
class DynamicScaling:
    """The base grows once a sequence is longer than `original_context` ("dynamic NTK")."""

    factor: float
    original_context: int

    def __post_init__(self) -> None:
        check.number("rope factor", self.factor)
        check.size("original_context", self.original_context)


@record
class Llama3Scaling:
    """Low frequencies divided by `factor`, high ones kept, a smooth ramp between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            check.number(f"rope {name}", getattr(self, name))
        check.size("original_context", self.original_context)


@record
class YarnScaling:
    """YaRN (arXiv 2309.00071): a ramp between kept and divided frequencies, and a factor on the logits.

    `attention_factor` multiplies cos and sin; 0 means that it follows from `factor`, `mscale` and `mscale_all_dim` as
    DeepSeek's code has it. The softmax scale of MLA is multiplied by mscale_all_dim's factor squared: that product
    stands in `AttentionSpec.scale`, where it is explicit.
    """

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    attention_factor: float = 0.0
    truncate: bool = True

    def __post_init__(self) -> None:
        for name in ("factor", "beta_fast", "beta_slow"):
            check.number(f"rope {name}", getattr(self, name))
        for name in ("mscale", "mscale_all_dim", "attention_factor"):
            check.number(f"rope {name}", getattr(self, name), zero=True)
        check.size("original_context", self.original_context)
        check.flag("rope truncate", self.truncate)


@record
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753): one divisor a frequency, a short and a long list, chosen at `original_context`."""

    original_context: int
    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    attention_factor: float = 0.0

    def __post_init__(self) -> None:
        check.size("original_context", self.original_context)
        check.number("rope attention_factor", self.attention_factor, zero=True)
        check.row("longrope short_factor", self.short_factor)
        check.row("longrope long_factor", self.long_factor)
        if len(self.short_factor) != len(self.long_factor):
            raise SpecError(
                f"longrope needs as many short as long factors, found {len(self.short_factor)} and "
                f"{len(self.long_factor)}"
            )
        for value in (*self.short_factor, *self.long_factor):
            check.number("longrope factor", value)


RopeScaling = NoScaling | LinearScaling | DynamicScaling | Llama3Scaling | YarnScaling | LongRopeScaling


@record
class Rope:
    """Rotary embedding of the first `dim` elements of queries and keys (arXiv 2104.09864).

    Pair i turns by position · base^(-2i/dim). `layout`: "halves" pairs element i with i + dim/2 (Hugging Face's Llama,
    NeoX), "interleaved" pairs 2i with 2i + 1 (Meta's Llama files, DeepSeek).
    """

    dim: int
    base: float = 10000.0
    layout: str = "halves"
    scaling: RopeScaling = NoScaling()

    def __post_init__(self) -> None:
        check.size("rope dim", self.dim)
        if self.dim % 2:
            raise SpecError(f"rope dim must be even, since it turns pairs; found {self.dim}")
        check.number("rope base", self.base)
        check.one_of("rope layout", self.layout, ("halves", "interleaved"))
        check.instance("rope scaling", self.scaling, RopeScaling.__args__)
        if isinstance(self.scaling, LongRopeScaling) and len(self.scaling.short_factor) != self.dim // 2:
            raise SpecError(
                f"longrope needs {self.dim // 2} factors for rope dim {self.dim}, found {len(self.scaling.short_factor)}"
            )


@record
class Alibi:
    """A bias of -slope_h · distance on the logits, one slope a head (arXiv 2108.12409)."""


@record
class RelativeBuckets:
    """T5's learned bias: one value a head and bucket of the distance; the table is the stack's, shared by its layers."""

    num_buckets: int
    max_distance: int
    two_sided: bool

    def __post_init__(self) -> None:
        check.size("num_buckets", self.num_buckets, least=2)
        check.size("max_distance", self.max_distance)
        check.flag("two_sided", self.two_sided)


Positions = NoPositions | Rope | Alibi | RelativeBuckets
