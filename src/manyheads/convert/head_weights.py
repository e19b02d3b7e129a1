"""The weights of one attention as matrices of its heads, in float64: what every method of a conversion works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyheads.errors import ConversionError
from manyheads.spec.attention import AttentionSpec, Borrowed
from manyheads.spec.kv import Heads
from manyheads.spec.positions import Alibi, RelativeBuckets

__all__ = ["HeadWeights", "Units", "check_heads", "may_permute", "units_of"]


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """Weights by their names inside an attention, float64: q (h, q, m), k (k, q, m), v (k, v, m), o (m, h, v), biases."""

    spec: AttentionSpec
    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, spec: AttentionSpec, tensors: Mapping[str, Tensor]) -> HeadWeights:
        """From canonical tensors of any floating type."""
        return cls(spec, {name: tensor.to(torch.float64) for name, tensor in tensors.items()})

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def get(self, name: str) -> Tensor | None:
        """The weight, None where the attention has none of that name."""
        return self.tensors.get(name)

    def changed(self, kv_heads: int, **new: Tensor) -> HeadWeights:
        """With other tensors ("q_bias" for "q.bias"), of an attention with `kv_heads` KV heads."""
        kv = self.spec.kv
        if not isinstance(kv, Heads):
            raise AssertionError("only attentions with KV heads are changed")
        tensors = dict(self.tensors) | {name.replace("_bias", ".bias"): tensor for name, tensor in new.items()}
        return HeadWeights(replace(self.spec, kv=replace(kv, num_kv_heads=kv_heads)), tensors)

    def permuted(self, order: Sequence[int]) -> HeadWeights:
        """Query head i becomes what head order[i] was; the columns of the output projection, sinks and gates move along."""
        if list(order) == list(range(len(order))):
            return self
        index = torch.tensor(list(order))
        axis = {"q": 0, "q.bias": 0, "o": 1, "sinks": 0, "gate": 0}
        if self.spec.qk_norm is not None and self.spec.qk_norm.scope != "head":
            axis |= {"q_norm.weight": 0, "q_norm.bias": 0}
        return HeadWeights(
            self.spec,
            {
                name: each.index_select(axis[name], index) if name in axis else each
                for name, each in self.tensors.items()
            },
        )


@dataclass(frozen=True)
class Units:
    """The smallest sets of query heads that a regrouping moves as one: `heads` of each, and the KV head that they read.

    Unit u holds query heads u * size to (u + 1) * size - 1. Where the new number of KV heads divides the old one, a unit
    is all that share an old KV head; else it is smaller.
    """

    size: int
    kv_heads: tuple[int, ...]
    groups: int

    @property
    def each(self) -> int:
        """Units in a group."""
        return len(self.kv_heads) // self.groups

    def heads(self, unit: int) -> range:
        """The query heads of a unit."""
        return range(unit * self.size, (unit + 1) * self.size)

    def heads_of(self, group: Sequence[int]) -> list[int]:
        """The query heads of a group of units."""
        return [head for unit in group for head in self.heads(unit)]

    def old_of(self, group: Sequence[int]) -> list[int]:
        """The old KV heads that a group of units reads, ascending."""
        return sorted({self.kv_heads[unit] for unit in group})

    def contiguous(self) -> tuple[tuple[int, ...], ...]:
        """Groups of neighbours, as converters that do not look assume them."""
        return tuple(tuple(range(at, at + self.each)) for at in range(0, len(self.kv_heads), self.each))


def units_of(spec: AttentionSpec, kv_heads: int) -> Units:
    """The units in which `spec` is regrouped to fewer, `kv_heads`, KV heads."""
    from math import gcd

    kv = check_heads(spec, kv_heads)
    size = gcd(spec.num_heads // kv.num_kv_heads, spec.num_heads // kv_heads)
    shared = spec.num_heads // kv.num_kv_heads
    return Units(size, tuple(unit * size // shared for unit in range(spec.num_heads // size)), kv_heads)


def check_heads(spec: AttentionSpec, kv_heads: int) -> Heads:
    """The KV heads of `spec`, where it can have `kv_heads` instead; ConversionError with the counts that it can have."""
    kv, h = spec.kv, spec.num_heads
    if not isinstance(kv, Heads):
        raise ConversionError(
            f"its attention is {spec.scheme}, which keeps no key/value heads; valid: attention with KV heads (MHA, GQA)"
        )
    if isinstance(spec.source, Borrowed):
        raise ConversionError(
            f"one of its layers reads the keys and values of layer {spec.source.layer}: regrouping layers that share is not "
            "described; valid: models in which each layer has its own"
        )
    valid = [n for n in range(1, h + 1) if h % n == 0 and (n <= kv.num_kv_heads or n % kv.num_kv_heads == 0)]
    if kv_heads not in valid:
        raise ConversionError(
            f"{kv_heads} KV heads for {h} query heads and {kv.num_kv_heads} KV heads; valid: {', '.join(map(str, valid))}"
        )
    return kv


def may_permute(spec: AttentionSpec) -> bool:
    """Whether query heads can change places: not where their position acts by the number of the head."""
    return not isinstance(spec.positions, Alibi | RelativeBuckets)
