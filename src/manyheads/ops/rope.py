"""Rotary embedding: angles from positions, frequencies by every scaling a spec knows, and the turn itself.

    pair i of x turns by position · frequency_i,  frequency_i = base^(-2i/dim) before scaling

Frequencies are exact (Python floats), angles are made in float64 and rounded once: a table built in 16 bits loses
positions from 257 on (case O30). Source: arXiv 2104.09864.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.arguments import check_positions
from manyheads.ops.precision import wide
from manyheads.quoting import shown
from manyheads.spec.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    YarnScaling,
)

__all__ = ["angles", "apply", "attention_factor", "frequencies", "yarn_mscale"]


def angles(
    positions: Tensor, rope: Rope, *, dtype: torch.dtype = torch.float32, length: int | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin of each position's angles, each of shape positions.shape + (dim/2,), attention factor included.

    `dtype`: float32 or float64, never narrower. `length`: how long the sequence is (last position + 1), which decides
    the frequencies of the dynamic and longrope scalings and is needed for these. Positions in 16 bits are a SpecError.
    """
    check_positions(positions)
    rates = frequencies(rope, length=length)
    # MPS has no float64
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    turns = positions.to(exact)[..., None] * torch.tensor(rates, dtype=exact, device=positions.device)
    factor, compute = attention_factor(rope), wide(dtype)
    return (turns.cos() * factor).to(compute), (turns.sin() * factor).to(compute)


def apply(x: Tensor, cos: Tensor, sin: Tensor, layout: str = "halves") -> Tensor:
    """Turn the first 2·cos.shape[-1] elements of x (b, h, t, d); the rest passes.

    cos, sin: (t, dim/2), or (b, t, dim/2) for positions of each sequence's own. `layout`: "halves" turns (i, i + dim/2),
    "interleaved" (2i, 2i + 1). Computed in float32 or wider, cast back once.
    """
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise SpecError(f"rope turns {2 * half} elements, but heads have {x.shape[-1]}")
    if layout not in ("halves", "interleaved"):
        raise SpecError(f"rope layout must be halves or interleaved, found {shown(layout)}")
    compute = wide(x.dtype)
    cos, sin = (part.to(compute) if part.dim() == 2 else part.to(compute)[:, None] for part in (cos, sin))
    rotated = x[..., : 2 * half].to(compute)
    a, b = rotated.chunk(2, -1) if layout == "halves" else (rotated[..., 0::2], rotated[..., 1::2])
    parts = (a * cos - b * sin, b * cos + a * sin)
    rotated = torch.cat(parts, -1) if layout == "halves" else torch.stack(parts, -1).flatten(-2)
    rotated = rotated.to(x.dtype)
    return rotated if 2 * half == x.shape[-1] else torch.cat((rotated, x[..., 2 * half :]), -1)


def frequencies(rope: Rope, *, length: int | None = None) -> tuple[float, ...]:
    """The dim/2 frequencies, scaling included, in radians a position. `length` as in `angles`."""
    scaling, dim = rope.scaling, rope.dim
    plain = tuple(rope.base ** (-i / dim) for i in range(0, dim, 2))
    if isinstance(scaling, LinearScaling):
        return tuple(rate / scaling.factor for rate in plain)
    if isinstance(scaling, DynamicScaling):
        return _dynamic(rope, scaling, _needed(length, "dynamic"))
    if isinstance(scaling, Llama3Scaling):
        return tuple(_llama3(rate, scaling) for rate in plain)
    if isinstance(scaling, YarnScaling):
        return _yarn(rope, scaling, plain)
    if isinstance(scaling, LongRopeScaling):
        long = _needed(length, "longrope") > scaling.original_context
        divisors = scaling.long_factor if long else scaling.short_factor
        return tuple(rate / divisor for rate, divisor in zip(plain, divisors, strict=True))
    return plain


def attention_factor(rope: Rope) -> float:
    """What a scaling multiplies cos and sin with, and so the logits of the rotary part with its square: 1 but for two.

    YaRN, where it is not given: m(factor, mscale) / m(factor, mscale_all_dim) if both are given, else m(factor, 1).
    LongRoPE: as given; its spec does not hold the stretch it would follow from, so 0 (not given) means 1.
    """
    scaling = rope.scaling
    if isinstance(scaling, LongRopeScaling):
        return scaling.attention_factor or 1.0
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.attention_factor:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return yarn_mscale(scaling.factor, scaling.mscale) / yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    return yarn_mscale(scaling.factor, 1.0)


def yarn_mscale(factor: float, mscale: float) -> float:
    """m = 0.1 · mscale · ln(factor) + 1, 1 where nothing is stretched. MLA's softmax scale is multiplied by
    m(factor, mscale_all_dim)² (case O96); that product stands in the spec's scale. Source: arXiv 2309.00071, section 3.4.
    """
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _needed(length: int | None, kind: str) -> int:
    if length is None:
        raise SpecError(f"{kind} rope depends on how long the sequence is: give length, the last position + 1")
    return length


def _dynamic(rope: Rope, scaling: DynamicScaling, length: int) -> tuple[float, ...]:
    """The base grows with the sequence: base · (factor·n/n0 - factor + 1)^(dim/(dim-2)), n at least n0."""
    if rope.dim < 4:
        raise SpecError(f"dynamic rope needs a rope dim of 4 or more, found {rope.dim}")
    stretch = scaling.factor * max(length, scaling.original_context) / scaling.original_context - scaling.factor + 1
    base = rope.base * stretch ** (rope.dim / (rope.dim - 2))
    return tuple(base ** (-i / rope.dim) for i in range(0, rope.dim, 2))


def _llama3(rate: float, scaling: Llama3Scaling) -> float:
    """Waves longer than context/low are divided by factor, shorter than context/high kept, a ramp between."""
    turns = scaling.original_context * rate / (2 * math.pi)
    if turns > scaling.high_freq_factor:
        return rate
    if turns < scaling.low_freq_factor:
        return rate / scaling.factor
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return (1 - share) * rate / scaling.factor + share * rate


def _yarn(rope: Rope, scaling: YarnScaling, plain: tuple[float, ...]) -> tuple[float, ...]:
    """Pairs that turn more than beta_fast times in the original context are kept, fewer than beta_slow are divided."""

    def pair(turns: float) -> float:
        return rope.dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dim - 1)
    width = high - low if high != low else 0.001
    shares = (min(max((i - low) / width, 0.0), 1.0) for i in range(len(plain)))
    return tuple(rate / scaling.factor * share + rate * (1 - share) for rate, share in zip(plain, shares, strict=True))
