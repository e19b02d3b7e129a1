"""Calls of softmax attention of every kind: masks, biases, caps, sinks, offsets and what they do together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.ops import bias, masks

__all__ = ["CALLS", "LEARNED", "SHAPES", "Shape", "arguments", "tensors"]

LEARNED = ("bias", "sinks")  # keywords that are tensors with a gradient


@dataclass(frozen=True)
class Shape:
    """q (b, h, t, q), k (b, k, s, q), v (b, k, s, v): q and v never equal, H/K never K."""

    b: int
    h: int
    k: int
    t: int
    s: int
    q: int
    v: int


SHAPES = {
    "grouped": Shape(2, 6, 2, 37, 53, 8, 3),
    "one-token": Shape(3, 4, 4, 1, 19, 5, 7),
    "square": Shape(2, 6, 3, 33, 33, 4, 6),
    "more-queries": Shape(2, 4, 1, 20, 13, 6, 2),
    "ragged": Shape(1, 12, 4, 63, 70, 3, 5),
}


def tensors(shape: Shape, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of that shape."""
    made = torch.Generator().manual_seed(seed)
    n = shape
    sizes = ((n.b, n.h, n.t, n.q), (n.b, n.k, n.s, n.q), (n.b, n.k, n.s, n.v))
    q, k, v = (torch.randn(size, generator=made, dtype=torch.float64).to(dtype) for size in sizes)
    return q, k, v


def arguments(name: str, shape: Shape, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> dict[str, object]:
    """The keywords of the call `name` for that shape."""
    made = torch.Generator().manual_seed(seed)
    return {"scale": shape.q**-0.5 * 1.3, **CALLS[name](shape, _Draw(made, dtype))}


@dataclass(frozen=True)
class _Draw:
    generator: torch.Generator
    dtype: torch.dtype

    def normal(self, *size: int) -> Tensor:
        return torch.randn(size, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def coin(self, *size: int, share: float = 0.6) -> Tensor:
        return torch.rand(size, generator=self.generator) < share

    def upto(self, most: int, *size: int) -> Tensor:
        return torch.randint(0, most + 1, size, generator=self.generator)


def _holes(n: Shape, draw: _Draw) -> Tensor:
    """A mask in which one sequence, one head of another and one row of a third see nothing."""
    mask = draw.coin(n.b, n.h, n.t, n.s)
    mask[:1, 1], mask[:1, 0, :1], mask[1:2] = False, False, False
    return mask


def _ring(n: Shape, draw: _Draw) -> masks.Visible:
    """Slots in the order of a ring: the newest in the middle, two of them empty."""
    positions = torch.roll(torch.arange(n.s), n.s // 3)
    positions[-2:] = -1
    return masks.placed(masks.window(9), positions)


def _everything_at_once(n: Shape, draw: _Draw) -> dict[str, object]:
    return {
        "visible": (masks.window(11) | masks.band(2)) & masks.padding(draw.coin(n.b, n.s)),
        "bias": draw.normal(n.h, n.t, n.s),
        "softcap": 1.7,
        "sinks": draw.normal(n.h),
        "offset": n.s - n.t + draw.upto(3, n.b) - 1,
    }


CALLS: dict[str, Callable[[Shape, _Draw], dict[str, object]]] = {
    "plain": lambda n, draw: {},
    "everything": lambda n, draw: {"visible": masks.everything()},
    "causal": lambda n, draw: {"visible": masks.causal()},
    "window": lambda n, draw: {"visible": masks.window(5)},
    "window of one": lambda n, draw: {"visible": masks.window(1)},
    "band": lambda n, draw: {"visible": masks.band(3)},
    "chunk": lambda n, draw: {"visible": masks.chunk(7)},
    "padding": lambda n, draw: {"visible": masks.padding(draw.coin(n.b, n.s))},
    "lengths": lambda n, draw: {"visible": masks.lengths(draw.upto(n.s, n.b) * torch.arange(n.b).clamp(max=1))},
    "holes": lambda n, draw: {"visible": masks.dense(_holes(n, draw))},
    "boolean": lambda n, draw: {"visible": _holes(n, draw)},
    "row mask": lambda n, draw: {"visible": draw.coin(n.s)},
    "pair mask": lambda n, draw: {"visible": draw.coin(n.t, n.s)},
    "head mask": lambda n, draw: {"visible": draw.coin(n.h, 1, n.s)},
    "per head": lambda n, draw: {"visible": masks.per_head(masks.window(3), *[masks.causal()] * (n.h - 1))},
    "ring": lambda n, draw: {"visible": _ring(n, draw)},
    "causal and padding": lambda n, draw: {"visible": masks.causal() & masks.padding(draw.coin(n.b, n.s))},
    "causal or padding": lambda n, draw: {"visible": masks.causal() | masks.padding(draw.coin(n.b, n.s))},
    "outside the band": lambda n, draw: {"visible": ~masks.band(4)},
    "prefix": lambda n, draw: {"visible": masks.causal() | masks.lengths(torch.full((n.b,), 5))},
    "nothing": lambda n, draw: {"visible": ~masks.everything()},
    "bias": lambda n, draw: {"bias": draw.normal(n.b, n.h, n.t, n.s)},
    "bias a head": lambda n, draw: {"bias": draw.normal(n.h, 1, n.s), "visible": masks.causal()},
    "bias a row": lambda n, draw: {"bias": draw.normal(n.t, 1).expand(n.t, n.s)},
    "bias with -inf": lambda n, draw: {
        "bias": draw.normal(n.b, n.h, n.t, n.s).masked_fill(~_holes(n, draw), -torch.inf)
    },
    "alibi": lambda n, draw: {"bias": bias.Alibi(bias.alibi_slopes(n.h)), "visible": masks.causal()},
    "softcap": lambda n, draw: {"softcap": 0.8, "visible": masks.causal()},
    "softcap and bias": lambda n, draw: {"softcap": 0.8, "bias": draw.normal(n.t, n.s)},
    "sinks": lambda n, draw: {"sinks": draw.normal(n.h)},
    "sinks and holes": lambda n, draw: {"sinks": draw.normal(n.h), "visible": _holes(n, draw)},
    "sinks and window": lambda n, draw: {"sinks": draw.normal(n.h), "visible": masks.window(4)},
    "from the start": lambda n, draw: {"visible": masks.causal(), "offset": 0},
    "before the start": lambda n, draw: {"visible": masks.causal(), "offset": -3},
    "an offset each": lambda n, draw: {"visible": masks.causal(), "offset": draw.upto(n.s, n.b) - 4},
    "all at once": _everything_at_once,
}
