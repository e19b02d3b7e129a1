"""One shared key for a group of query heads, as maps that move exactly into the weights.

    c_n(s) = sum_g B_ng k_g(s),     k_g(h)(s) ~ A_h c_n(s),     q_h' = A_h^T q_h        so that  q_h^T k_g(h) ~ q_h'^T c_n

A and B are d x d. On rotated planes they are complex numbers, which commute with the rotation, so they act on weights
before it as on keys after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.convert.head_weights import HeadWeights
from manyheads.spec.positions import Rope

__all__ = ["KeyMerge", "Planes", "kept_whole", "planes_of"]


@dataclass(frozen=True)
class Planes:
    """Which elements of a head turn together. `first` and `second`: the two of each plane; `flat`: those that do not turn."""

    first: tuple[int, ...]
    second: tuple[int, ...]
    flat: tuple[int, ...]

    def complex_of(self, x: Tensor) -> Tensor:
        """(..., d) real to (..., j) complex: element `first` + i · element `second` of each plane."""
        return torch.complex(x[..., list(self.first)], x[..., list(self.second)])

    def flat_of(self, x: Tensor) -> Tensor:
        """The elements that do not turn, (..., f)."""
        return x[..., list(self.flat)]

    def matrix(self, factors: Tensor, flat: Tensor) -> Tensor:
        """The real d x d map that multiplies plane j by factors[j] and the flat elements by `flat` (f, f)."""
        size = 2 * len(self.first) + len(self.flat)
        made = torch.zeros(size, size, dtype=torch.float64)
        first, second = torch.tensor(self.first, dtype=torch.long), torch.tensor(self.second, dtype=torch.long)
        made[first, first] = made[second, second] = factors.real
        made[second, first], made[first, second] = factors.imag, -factors.imag
        if self.flat:
            rows = torch.tensor(self.flat)
            made[rows[:, None], rows[None, :]] = flat
        return made


def planes_of(positions: object, head_dim: int) -> Planes:
    """The planes of a head: by the layout of its RoPE, none where nothing is rotated."""
    if not isinstance(positions, Rope):
        return Planes((), (), tuple(range(head_dim)))
    half, turned = positions.dim // 2, positions.dim
    rest = tuple(range(turned, head_dim))
    if positions.layout == "halves":
        return Planes(tuple(range(half)), tuple(range(half, turned)), rest)
    return Planes(tuple(range(0, turned, 2)), tuple(range(1, turned, 2)), rest)


@dataclass(frozen=True, eq=False)
class KeyMerge:
    """The maps of one attention.

    groups      the query heads of each new KV head, as they are numbered now
    loadings    A (h, d, d); mixing: B (n, k, d, d), zero for old heads that a group does not read
    left_out    share of the weighted energy of keys that the shared ones do not carry
    """

    groups: tuple[tuple[int, ...], ...]
    loadings: Tensor
    mixing: Tensor
    left_out: float

    def queries(self, q: Tensor) -> Tensor:
        """q' (b, h, t, d) of queries after rotation and norms."""
        return torch.einsum("bhtd,hde->bhte", q, self.loadings.to(q.dtype))

    def keys(self, k: Tensor) -> Tensor:
        """c (b, n, s, d) of the old keys (b, k, s, d)."""
        return torch.einsum("bksd,nked->bnse", k, self.mixing.to(k.dtype))

    def of_head(self) -> list[int]:
        """The new KV head of each query head."""
        found = {head: group for group, heads in enumerate(self.groups) for head in heads}
        return [found[head] for head in range(len(found))]

    def moved_into(self, weights: HeadWeights) -> dict[str, Tensor]:
        """The new q and k, and their biases, with query heads still in their old order."""
        made = {
            "q": torch.einsum("hdm,hde->hem", weights["q"], self.loadings),
            "k": torch.einsum("kdm,nked->nem", weights["k"], self.mixing),
        }
        q_bias, k_bias = weights.get("q.bias"), weights.get("k.bias")
        if q_bias is not None:
            made["q_bias"] = torch.einsum("hd,hde->he", q_bias, self.loadings)
        if k_bias is not None:
            made["k_bias"] = torch.einsum("kd,nked->ne", k_bias, self.mixing)
        return made


def kept_whole(
    groups: Sequence[Sequence[int]], old_of: Sequence[Sequence[int]], heads: int, old: int, dim: int
) -> tuple[Tensor, Tensor]:
    """A and B that change nothing: identities for groups that read one old KV head alone, zeros for the rest."""
    loadings = torch.eye(dim, dtype=torch.float64).expand(heads, dim, dim).clone()
    mixing = torch.zeros(len(groups), old, dim, dim, dtype=torch.float64)
    for group, olds in enumerate(old_of):
        if len(olds) == 1:
            mixing[group, olds[0]] = torch.eye(dim, dtype=torch.float64)
    return loadings, mixing
