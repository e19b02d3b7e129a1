"""One step of attention as numbers: what it reads, what it multiplies, and the least time that takes on a machine.

roofline = max(bytes / best read probe, FLOPs / best peak of products, in fp32 or in the storage type)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from manyheads.cost.dtypes import dtype as storage
from manyheads.cost.formulas import int8_part_bytes
from manyheads.errors import ManyheadsError
from manyheads.quoting import shown

__all__ = ["DTYPES", "Floor", "Shape", "floor"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8}


@dataclass(frozen=True)
class Shape:
    """`queries` new tokens of one sequence over a cache of `keys` tokens, in which they are the last."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    keys: int
    dtype: str
    queries: int = 1

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ManyheadsError(f"dtype {shown(self.dtype)} is not one of {', '.join(DTYPES)}")
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ManyheadsError(
                f"{self.heads} query heads cannot share {self.kv_heads} KV heads evenly; valid: a divisor of {self.heads}"
            )

    @property
    def group(self) -> int:
        """Query heads that share a KV head."""
        return self.heads // self.kv_heads

    @property
    def key_elements(self) -> int:
        return self.kv_heads * self.keys * self.head_dim

    @property
    def value_elements(self) -> int:
        return self.kv_heads * self.keys * self.v_head_dim

    @property
    def cache_bytes(self) -> int:
        """Keys and values, and in int8 a 16-bit scale a token and head for each."""
        if self.dtype == "int8":
            return self.keys * sum(int(int8_part_bytes(self.kv_heads, d)) for d in (self.head_dim, self.v_head_dim))
        return int(storage(self.dtype).bytes(self.key_elements + self.value_elements))

    def copy_bytes(self, *, heads: int = 0, width: int = 0) -> int:
        """Keys and values copied for `heads` instead of the KV heads, in elements of `width` bytes instead of their own."""
        elements = (heads or self.kv_heads) * self.keys * (self.head_dim + self.v_head_dim)
        return elements * int(width or DTYPES[self.dtype].itemsize)

    @property
    def pairs(self) -> int:
        """Query-key pairs of a causal mask, all heads."""
        return self.heads * (self.queries * self.keys - self.queries * (self.queries - 1) // 2)

    @property
    def flops(self) -> int:
        """Two for each multiply-add of the scores and of the mix."""
        return 2 * self.pairs * (self.head_dim + self.v_head_dim)


@dataclass(frozen=True)
class Floor:
    """The least time: `seconds`, and whether "memory" or "compute" sets it."""

    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound_by(self) -> str:
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def floor(*, moved_bytes: int, flops: int, bandwidth: float, peak: float) -> Floor:
    """The roofline of a step on a machine that reads `bandwidth` bytes and multiplies `peak` FLOPs a second."""
    return Floor(moved_bytes / bandwidth, flops / peak)
