"""What is added to the logits after scaling: ALiBi's slopes, T5's buckets; and sinusoids, added to embeddings."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.arguments import check_positions, check_slopes
from manyheads.ops.predicates import Grid, grid
from manyheads.quoting import shown
from manyheads.spec import check

__all__ = ["Additive", "Alibi", "alibi_bias", "alibi_slopes", "relative_bias", "relative_buckets", "sinusoids"]


class Additive:
    """A bias that is a formula in positions, so that no form has to hold it whole; a constant, without gradients."""

    def tile(self, at: Grid, dtype: torch.dtype) -> Tensor:
        """The bias of a block of pairs, broadcastable to (batch, heads, rows, columns)."""
        raise NotImplementedError

    def check(self, *, heads: int) -> None:
        """Raise a SpecError if it does not fit the call."""


def alibi_slopes(heads: int, *, device: torch.device | str = "cpu") -> Tensor:
    """One slope a head, (heads,) float64: 2^(-8 i/n), i = 1..n, for n heads, n a power of two.

    For other counts, the slopes of the power of two below, then every other slope of the one above (arXiv 2108.12409,
    section 3, and its published code; case O97).
    """
    check.size("heads of alibi", heads)
    power = 2 ** (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * i / power) for i in range(1, power + 1)]
    slopes += [2.0 ** (-4.0 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float64, device=device)


@dataclass(frozen=True, eq=False)
class Alibi(Additive):
    """-slopes[h] · |query - key|, from positions (arXiv 2108.12409)."""

    slopes: Tensor

    def tile(self, at: Grid, dtype: torch.dtype) -> Tensor:
        exact = torch.promote_types(dtype, torch.float32)  # distances beyond 256 do not fit 16 bits
        slopes = self.slopes.detach().to(device=at.key.device, dtype=exact).view(1, -1, 1, 1)
        return (-slopes * (at.query - at.key).abs().to(exact)).to(dtype)

    def check(self, *, heads: int) -> None:
        check_slopes(self.slopes, heads=heads)


def alibi_bias(
    slopes: Tensor, *, queries: int, keys: int, offset: int | Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """ALiBi as a tensor (1 or b, h, t, s): -slope · distance; `offset` as in `masks.materialise`."""
    check_slopes(slopes, heads=slopes.numel())
    at = _whole(slopes.shape[0], queries, keys, offset, slopes.device)
    return Alibi(slopes).tile(at, dtype)


def relative_buckets(distance: Tensor, *, num_buckets: int, max_distance: int, two_sided: bool) -> Tensor:
    """T5's bucket of each key position minus query position: exact near, logarithmic far, the last one beyond.

    bucket(n) = n for n < m/2, else m/2 + floor(ln(n/(m/2)) / ln(max_distance/(m/2)) · (m/2)), at most m - 1, where m
    is num_buckets, or half of it a side where two-sided. Source: arXiv 1910.10683, section 2.1, and its code.
    """
    check_positions(distance, "distance")
    side = num_buckets // 2 if two_sided else num_buckets
    exact = side // 2
    if exact < 1 or max_distance <= exact:
        raise SpecError(
            f"num_buckets {num_buckets} and max_distance {max_distance} leave no logarithmic buckets: at least "
            f"{4 if two_sided else 2} buckets and a max_distance above {max(exact, 1)} are needed"
        )
    behind = distance.neg().clamp(min=0)
    start = torch.where(distance > 0, side, 0) if two_sided else torch.zeros_like(distance)
    behind = distance.abs() if two_sided else behind
    # float32, as the models were trained: float64 puts some distances on the other side of a floor
    ratio = torch.log(behind.clamp(min=1).float() / exact) / math.log(max_distance / exact)
    far = (exact + (ratio * (side - exact)).long()).clamp(max=side - 1)
    return start + torch.where(behind < exact, behind, far)


def relative_bias(
    table: Tensor,
    *,
    queries: int,
    keys: int,
    max_distance: int,
    two_sided: bool,
    offset: int | Tensor | None = None,
) -> Tensor:
    """T5's bias (1 or b, h, t, s): table[bucket(key - query), h], from the stack's table (num_buckets, h)."""
    at = _whole(table.shape[1], queries, keys, offset, table.device)
    distance = (at.key - at.query)[:, 0]
    buckets = relative_buckets(distance, num_buckets=table.shape[0], max_distance=max_distance, two_sided=two_sided)
    return table[buckets].movedim(-1, 1)


def sinusoids(
    positions: Tensor, dim: int, *, base: float = 10000.0, layout: str = "interleaved", inclusive: bool = False
) -> Tensor:
    """The fixed position table (.., dim) in float32 or wider: sin and cos of position · base^(-i/n), n = dim/2 rates.

    `layout`: "interleaved" puts sin at 2i and cos at 2i+1 (arXiv 1706.03762, section 3.5), "halves" all sines first
    (Marian, Whisper). `inclusive`: rates base^(-i/(n-1)), so that the last is 1/base exactly (tensor2tensor, Whisper).
    """
    check_positions(positions)
    check.size("dim of sinusoids", dim)
    if dim % 2 or dim < 2 or (inclusive and dim < 4):
        raise SpecError(f"sinusoids need an even dim of 2 or more (4 where inclusive), found {dim}")
    if layout not in ("interleaved", "halves"):
        raise SpecError(f"layout must be interleaved or halves, found {shown(layout)}")
    half = dim // 2
    rates = torch.tensor([base ** (-i / (half - inclusive)) for i in range(half)], dtype=torch.float64)
    angles = positions.to(torch.float64)[..., None] * rates.to(positions.device)
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1 if layout == "interleaved" else -2).flatten(-2)
    return waves if positions.dtype == torch.float64 else waves.float()


def _whole(heads: int, queries: int, keys: int, offset: int | Tensor | None, device: torch.device) -> Grid:
    batch = offset.numel() if isinstance(offset, Tensor) else 1
    return grid(
        batch=batch, heads=heads, rows=slice(0, queries), columns=slice(0, keys),
        offset=keys - queries if offset is None else offset, device=device,
    )  # fmt: skip
