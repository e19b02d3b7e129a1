"""One step of attention as numbers: what it reads, what it multiplies, and the least time that takes on a machine.

roofline = max(bytes / best read probe, FLOPs / best peak of products, in fp32 or in the storage type)
"""

from __future__ import annotations

from dataclasses import dataclass

from manyheads.cost import layer
from manyheads.cost.dtypes import CACHE_DTYPES
from manyheads.cost.dtypes import dtype as storage
from manyheads.cost.formulas import flops, heads_cache_elements
from manyheads.errors import ManyheadsError
from manyheads.quoting import shown
from manyheads.spec import AttentionSpec, Causal, Heads, NoPositions

__all__ = ["DTYPES", "Shape"]

DTYPES = CACHE_DTYPES[1:]


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
    def spec(self) -> AttentionSpec:
        """The layer whose step this is, as `manyheads.cost` knows it."""
        kv = Heads(self.kv_heads, self.head_dim, self.v_head_dim)
        return AttentionSpec(
            d_model=self.heads * self.head_dim, num_heads=self.heads, kv=kv, positions=NoPositions(), mask=Causal(),
            scale=self.head_dim**-0.5,
        )  # fmt: skip

    @property
    def cache_bytes(self) -> int:
        """Keys and values, and in int8 a 16-bit scale a token and head for each."""
        return int(layer.read_bytes(self.spec, self.keys, self.dtype))

    def copy_bytes(self, *, heads: int = 0, width: int = 0) -> int:
        """Keys and values copied for `heads` instead of the KV heads, in elements of `width` bytes instead of their own."""
        elements = self.keys * heads_cache_elements(heads or self.kv_heads, self.head_dim, self.v_head_dim)
        return int(elements * width if width else storage(self.dtype).bytes(elements))

    @property
    def flops(self) -> int:
        """Two for each multiply-add of QK^T and of PV, of the pairs that a causal mask leaves."""
        return int(flops(layer.core_macs(self.spec, self.queries, self.keys)[1]))
