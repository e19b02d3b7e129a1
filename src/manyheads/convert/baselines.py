"""What the closed form is compared with: the mean of the heads of a group, the first of them, and both after alignment.

`mean` is what uptraining starts from (arXiv 2305.13245); without training it breaks a modern decoder. `procrustes` first
turns the heads of a group towards each other by maps that move exactly into queries and outputs: a phase in each rotated
plane, an orthogonal map elsewhere (after arXiv 2412.20677, without its training).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.convert.head_weights import HeadWeights, Units
from manyheads.convert.key_merge import KeyMerge, Planes
from manyheads.convert.values import ValueMerge
from manyheads.errors import ConversionError
from manyheads.models.door.door import Call

__all__ = ["AlignmentMoments", "first", "mean", "procrustes", "repeat"]

_ROUNDS = 30


def mean(weights: HeadWeights, units: Units) -> HeadWeights:
    """Each new KV head is the mean of the old ones that its query heads read; these stay as they are."""
    return _pooled(weights, units, lambda tensor, olds: tensor[olds].mean(0))


def first(weights: HeadWeights, units: Units) -> HeadWeights:
    """Each new KV head is the first of the old ones that its query heads read."""
    return _pooled(weights, units, lambda tensor, olds: tensor[olds[0]])


def _pooled(weights: HeadWeights, units: Units, pool: object) -> HeadWeights:
    assert callable(pool)
    groups = [_with_repeats(units, group) for group in units.contiguous()]
    names = {"k": "k", "k.bias": "k_bias", "v": "v", "v.bias": "v_bias"}
    norm = weights.spec.qk_norm
    if norm is not None and norm.scope != "head":
        names |= {"k_norm.weight": "k_norm.weight", "k_norm.bias": "k_norm.bias"}
    made = {
        new: torch.stack([pool(weights[name], olds) for olds in groups])
        for name, new in names.items() if weights.get(name) is not None
    }  # fmt: skip
    return weights.changed(units.groups, **made)


def _with_repeats(units: Units, group: tuple[int, ...]) -> list[int]:
    """The old KV head of each unit: one that serves more of the group counts more."""
    return [units.kv_heads[unit] for unit in group]


def repeat(weights: HeadWeights, kv_heads: int) -> HeadWeights:
    """More KV heads, each old one repeated in its place: the same function, to the bit."""
    old = weights["k"].shape[0]
    if kv_heads % old:
        raise ConversionError(f"{old} KV heads cannot be repeated to {kv_heads}; valid: a multiple of {old}")
    norm = weights.spec.qk_norm
    names = {"k": "k", "k.bias": "k_bias", "v": "v", "v.bias": "v_bias"}
    if norm is not None and norm.scope != "head":
        names |= {"k_norm.weight": "k_norm.weight", "k_norm.bias": "k_norm.bias"}
    made = {
        new: weights[name].repeat_interleave(kv_heads // old, 0)
        for name, new in names.items() if weights.get(name) is not None
    }  # fmt: skip
    return weights.changed(kv_heads, **made)


@dataclass(eq=False)
class AlignmentMoments:
    """Sums over the calibration text: planes (j, k, k) of k k^H, flat (k f, k f) of k k^T, values (k v, k v) of v v^T."""

    shape: Planes
    planes: Tensor
    flat: Tensor
    values: Tensor

    @classmethod
    def empty(cls, shape: Planes, kv_heads: int, value_size: int) -> AlignmentMoments:
        """Nothing seen yet."""
        flat = kv_heads * len(shape.flat)
        return cls(
            shape, torch.zeros(len(shape.first), kv_heads, kv_heads, dtype=torch.complex128),
            torch.zeros(flat, flat, dtype=torch.float64),
            torch.zeros(kv_heads * value_size, kv_heads * value_size, dtype=torch.float64),
        )  # fmt: skip

    def add(self, call: Call, _: Tensor | None = None) -> None:
        """One call of the attention."""
        for k, v in zip(call.k.to(torch.float64), call.v.to(torch.float64), strict=True):
            turned = self.shape.complex_of(k)
            self.planes += torch.einsum("ksj,lsj->jkl", turned, turned.conj())
            rows = self.shape.flat_of(k).transpose(0, 1).flatten(1)
            self.flat += rows.T @ rows
            values = v.transpose(0, 1).flatten(1)
            self.values += values.T @ values


def procrustes(weights: HeadWeights, moments: AlignmentMoments, units: Units) -> tuple[KeyMerge, ValueMerge]:
    """The mean of aligned heads, of groups of neighbours: maps for keys, and for values moved into W_O."""
    shape, groups = moments.shape, units.contiguous()
    heads, old, size = weights["q"].shape[0], weights["k"].shape[0], weights["v"].shape[1]
    dim, flat = weights["k"].shape[1], len(shape.flat)
    loadings = torch.zeros(heads, dim, dim, dtype=torch.float64)
    mixing = torch.zeros(len(groups), old, dim, dim, dtype=torch.float64)
    values = torch.zeros(len(groups), old, size, size, dtype=torch.float64)
    output = weights["o"].clone()
    for group, members in enumerate(groups):
        olds = units.old_of(members)
        phases = _phases(moments.planes[:, olds][:, :, olds])  # (j, g): k_g turned by it points with the others
        turns, moves = _turns(moments.flat, olds, flat), _turns(moments.values, olds, size)
        for at, number in enumerate(olds):
            mixing[group, number] = shape.matrix(phases[:, at], turns[at]) / len(olds)
            values[group, number] = moves[at] / len(olds)
        for head in units.heads_of(members):
            at = olds.index(units.kv_heads[head // units.size])
            loadings[head] = shape.matrix(phases[:, at].conj(), turns[at].T)
            output[:, head] = weights["o"][:, head] @ moves[at].T
    heads_of = tuple(tuple(units.heads_of(members)) for members in groups)
    return (
        KeyMerge(heads_of, loadings, mixing, float("nan")),
        ValueMerge(values, output, weights.get("o.bias"), float("nan")),
    )


def _phases(gram: Tensor) -> Tensor:
    """(j, g) of size one, with sum_gl phase_g gram_gl conj(phase_l) as large as alternating makes it."""
    phases = torch.ones(gram.shape[:2], dtype=gram.dtype)
    for _ in range(_ROUNDS):
        whole = torch.einsum("jgl,jl->jg", gram, phases.conj())
        phases = torch.polar(torch.ones_like(whole.real), -whole.angle())
    return phases


def _turns(gram: Tensor, olds: list[int], size: int) -> list[Tensor]:
    """Orthogonal maps R_g that bring R_g x_g close to their mean."""
    if not size:
        return [torch.zeros(0, 0, dtype=torch.float64)] * len(olds)
    blocks = [[gram[g * size : (g + 1) * size, k * size : (k + 1) * size] for k in olds] for g in olds]
    turns = [torch.eye(size, dtype=torch.float64) for _ in olds]
    for _ in range(_ROUNDS):
        for g in range(len(olds)):
            towards = sum(
                (turns[k] @ blocks[k][g] for k in range(len(olds)) if k != g),
                torch.zeros(size, size, dtype=torch.float64),
            )
            left, _, right = torch.linalg.svd(towards)
            turns[g] = left @ right if len(olds) > 1 else turns[g]
    return turns
