"""Caches that are not in a cache: views of one large buffer, handed out in turn, as the layers of a model are read.

A step that reads the same keys again finds them in the last-level cache, several times faster than in memory. No two
calls in a row get the same view, whoever makes them, and all of them together are larger than any cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.bench.shape import Shape
from manyheads.ops.dtypes import torch_dtype

__all__ = ["Buffer", "Rotation", "Step"]

# Not a multiple of any head: what repeats in the buffer does so at another place in each head.
_TILE_ELEMENTS = (1 << 22) + 4099
_FEWEST = 2


@dataclass(frozen=True, eq=False)
class Step:
    """What one call is given: q (1, h, t, q), k (1, k, s, q), v (1, k, s, v); for int8 the scales (1, k, s) too."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None


class Buffer:
    """`size_bytes` of random numbers of one storage type; every page is its own, though the numbers repeat."""

    def __init__(self, dtype: str, size_bytes: int, *, seed: int) -> None:
        self.dtype = dtype
        self.generator = torch.Generator().manual_seed(seed)
        kind = torch_dtype(dtype)
        count = -(-size_bytes // kind.itemsize)
        tile_elements = min(count, _TILE_ELEMENTS)
        if kind == torch.int8:
            tile = torch.randint(-127, 128, (tile_elements,), generator=self.generator, dtype=torch.int8)
        else:
            tile = torch.randn(tile_elements, generator=self.generator).to(kind)
        self.elements = torch.empty(count, dtype=kind)
        for start in range(0, count, tile_elements):
            part = self.elements[start : start + tile_elements]
            part.copy_(tile[: len(part)])

    def words(self) -> Tensor:
        """The buffer as int64, for probes: as numbers of any other type some would be slow to add."""
        whole = self.elements.numel() * self.elements.itemsize // 8 * 8
        return self.elements.view(torch.uint8)[:whole].view(torch.int64)


class Rotation:
    """Steps of `shape` over `buffer`; at least two, for which the buffer must have room."""

    def __init__(self, buffer: Buffer, shape: Shape) -> None:
        self.shape = shape
        each = shape.key_elements + shape.value_elements
        self.count = max(buffer.elements.numel() // each, 1)
        generator = buffer.generator
        self._elements = buffer.elements
        self._each = each
        self._queries = torch.randn(shape.heads * shape.queries * shape.head_dim, generator=generator)
        self._scales = None
        if shape.dtype == "int8":
            # A float16 a token and head, as in our cache, beside one byte an element: small, but read like the rest.
            size = (self.count, 2, 1, shape.kv_heads, shape.keys)
            self._scales = torch.rand(size, generator=generator).add_(0.5).div_(64.0).half()
        self._next = 0

    @staticmethod
    def bytes_for(shape: Shape, rotation_bytes: int) -> int:
        """What a buffer must hold so that `shape` has its two steps."""
        each = (shape.key_elements + shape.value_elements) * torch_dtype(shape.dtype).itemsize
        return max(rotation_bytes, _FEWEST * each)

    def step(self, index: int) -> Step:
        """The step at `index` of `count`."""
        shape = self.shape
        start = index % self.count * self._each
        k = self._elements[start : start + shape.key_elements]
        v = self._elements[start + shape.key_elements : start + self._each]
        kind = torch.float32 if shape.dtype == "int8" else torch_dtype(shape.dtype)
        q = self._queries.to(kind).view(1, shape.heads, shape.queries, shape.head_dim)
        scales = (None, None) if self._scales is None else self._scales[index % self.count]
        return Step(
            q,
            k.view(1, shape.kv_heads, shape.keys, shape.head_dim),
            v.view(1, shape.kv_heads, shape.keys, shape.v_head_dim),
            *scales,
        )

    def next(self) -> Step:
        """The next one, whoever asks."""
        self._next += 1
        return self.step(self._next)
