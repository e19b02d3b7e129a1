"""The closed form for keys: moments of the attention's own queries and keys, and the shared keys that lose least of them.

What a softmax is sensitive to is the variance of the error of its logits under the attention itself. For plane j of query
head h, an error  e = r^T k_j  of the key, r complex with one element for each old KV head, has it in

    r S_hj r^H,    S_hj = sum_t |q_hj(t)|^2 ( E_A[k_j k_j^H] - m m^H ),    m = E_A[k_j],

planes and phases taken for independent; E_A is the mean over s under A_h(t, .). A phase that all heads share, as the
rotation, cancels in it, so queries and keys are taken after RoPE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.convert.head_weights import Units
from manyheads.convert.key_merge import KeyMerge, Planes, kept_whole
from manyheads.convert.small_matrices import root, top_vectors
from manyheads.models.door.door import Call

__all__ = ["KeyMoments", "merge_keys"]

_ROUNDS = 200
_CONVERGED = 1e-9


@dataclass(eq=False)
class KeyMoments:
    """Sums over the calibration text, for one attention of h query and k KV heads, j planes and f flat elements.

    planes   S (h, j, k, k) complex: conjugate on the second KV head
    queries  (h, f, f): sum of q q^T over t;  keys (k f, k f): sum over h and t of the covariance of k under A_h(t, .)
    rows     how many pairs of h and t `keys` was summed over
    """

    shape: Planes
    turning: Tensor
    queries: Tensor
    keys: Tensor
    rows: int = 0

    @classmethod
    def empty(cls, shape: Planes, heads: int, kv_heads: int) -> KeyMoments:
        """Nothing seen yet."""
        flat = len(shape.flat)
        return cls(
            shape,
            torch.zeros(heads, len(shape.first), kv_heads, kv_heads, dtype=torch.complex128),
            torch.zeros(heads, flat, flat, dtype=torch.float64),
            torch.zeros(kv_heads * flat, kv_heads * flat, dtype=torch.float64),
        )

    def add(self, call: Call, attention: Tensor) -> None:
        """One call of the attention. `attention`: its probabilities (b, h, t, s)."""
        for q, k, a in zip(call.q, call.k, attention, strict=True):
            self._add(q.to(torch.float64), k.to(torch.float64), a.to(torch.float64))

    def _add(self, q: Tensor, k: Tensor, attention: Tensor) -> None:
        means = torch.einsum("hts,ksd->htkd", attention, k)
        self.rows += attention.shape[0] * attention.shape[1]
        if self.shape.first:
            energy = self.shape.complex_of(q).abs() ** 2  # (h, t, j)
            mass = torch.einsum("htj,hts->hjs", energy, attention)
            keys, at_mean = self.shape.complex_of(k), self.shape.complex_of(means)
            for head in range(q.shape[0]):
                weighted = mass[head].T.unsqueeze(0) * keys  # (k, s, j)
                self.turning[head] += torch.einsum("ksj,lsj->jkl", weighted, keys.conj())
                spread = energy[head].unsqueeze(1) * at_mean[head]  # (t, k, j)
                self.turning[head] -= torch.einsum("tkj,tlj->jkl", spread, at_mean[head].conj())
        if self.shape.flat:
            flat_q = self.shape.flat_of(q)
            self.queries += flat_q.transpose(1, 2) @ flat_q
            rows = self.shape.flat_of(k).transpose(0, 1).flatten(1)  # (s, k f)
            self.keys += (attention.sum((0, 1)).unsqueeze(1) * rows).T @ rows
            at = self.shape.flat_of(means).flatten(2).flatten(0, 1)  # (h t, k f)
            self.keys -= at.T @ at


def merge_keys(moments: KeyMoments, units: Units, groups: Sequence[Sequence[int]]) -> KeyMerge:
    """The shared key of each group of units, and how each query head reads it: alternating least squares on the moments.

    A group that reads one old KV head keeps it as it is, to the bit.
    """
    shape, heads = moments.shape, moments.turning.shape[0]
    kv_heads = moments.turning.shape[-1]
    dim = 2 * len(shape.first) + len(shape.flat)
    olds = [units.old_of(group) for group in groups]
    members = [tuple(units.heads_of(group)) for group in groups]
    loadings, mixing = kept_whole(groups, olds, heads, kv_heads, dim)
    lost = 0.0
    for group, (chosen, old) in enumerate(zip(members, olds, strict=True)):
        if len(old) == 1:
            continue
        reads = [old.index(_old_head(units, head)) for head in chosen]
        a, b, turning = _turning(moments, chosen, old, reads)
        flat_a, flat_b, flat = _flat(moments, chosen, old, reads)
        lost += turning + flat
        for at, head in enumerate(chosen):
            loadings[head] = shape.matrix(a[at], flat_a[at])
        for at, number in enumerate(old):
            mixing[group, number] = shape.matrix(b[at], flat_b[at])
    return KeyMerge(tuple(members), loadings, mixing, lost / max(_energy(moments, units), 1e-300))


def _old_head(units: Units, head: int) -> int:
    return units.kv_heads[head // units.size]


def _energy(moments: KeyMoments, units: Units) -> float:
    """The weighted energy of all keys: what leaving them out whole would lose."""
    flat = len(moments.shape.flat)
    total = 0.0
    for head in range(moments.turning.shape[0]):
        old = _old_head(units, head)
        total += float(moments.turning[head, :, old, old].real.sum())
        if flat:
            block = moments.keys[old * flat : (old + 1) * flat, old * flat : (old + 1) * flat]
            total += float((moments.queries[head] * block).sum()) / max(moments.rows, 1)
    return total


def _turning(
    moments: KeyMoments, heads: Sequence[int], old: Sequence[int], reads: Sequence[int]
) -> tuple[Tensor, Tensor, float]:
    """(a (h, j), b (g, j), energy left out) on the rotated planes."""
    s = moments.turning[list(heads)][:, :, list(old)][:, :, :, list(old)]  # (h, j, g, g)
    count, planes, size, _ = s.shape
    if not planes:
        return torch.zeros(count, 0, dtype=s.dtype), torch.zeros(size, 0, dtype=s.dtype), 0.0
    rows = torch.tensor(list(reads))
    _, vectors = torch.linalg.eigh(_hermitian(s.sum(0)))
    b = vectors[..., -1].conj()  # (j, g): the key along the top eigenvector
    unit = torch.eye(size, dtype=s.dtype)
    own = s[torch.arange(count), :, rows, :]  # (h, j, g): row g(h) of S
    energy = own[torch.arange(count), :, rows].real  # (h, j)
    before = float("inf")
    for _round in range(_ROUNDS):
        a, left = _loadings(s, own, energy, b)
        now = float(left.sum())
        if before - now <= _CONVERGED * max(float(energy.sum()), 1e-300):
            break
        before = now
        weight = torch.einsum("hj,hjgl->jgl", (a.abs() ** 2).to(s.dtype), s)
        target = torch.einsum("hj,hjg->jg", a.conj(), own)
        scale = weight.diagonal(dim1=1, dim2=2).real.sum(-1).clamp_min(1e-300)
        damped = weight + 1e-13 * scale[:, None, None] * unit
        b = torch.linalg.solve(damped.transpose(1, 2), target.unsqueeze(-1)).squeeze(-1)
        b = b / b.norm(dim=-1, keepdim=True).clamp_min(1e-300)
    a, left = _loadings(s, own, energy, b)
    return a, b.T.contiguous(), float(left.sum())


def _loadings(s: Tensor, own: Tensor, energy: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The best a (h, j) for b (j, g), and the energy (h, j) that is left out then."""
    cross = torch.einsum("hjg,jg->hj", own, b.conj())
    size = torch.einsum("jg,hjgl,jl->hj", b, s, b.conj()).real
    a = torch.where(size > 1e-300, cross / size.clamp_min(1e-300), torch.ones_like(cross))
    return a, (energy - cross.abs() ** 2 / size.clamp_min(1e-300)).clamp_min(0.0)


def _hermitian(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mH) / 2


def _flat(
    moments: KeyMoments, heads: Sequence[int], old: Sequence[int], reads: Sequence[int]
) -> tuple[Tensor, Tensor, float]:
    """(A (h, f, f), B (g, f, f), energy left out) on what does not turn: a weighted low-rank factorisation, exact optimum."""
    flat = len(moments.shape.flat)
    if not flat:
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return empty.expand(len(heads), 0, 0), empty.expand(len(old), 0, 0), 0.0
    rows = torch.cat([torch.arange(number * flat, (number + 1) * flat) for number in old])
    half, back = root(moments.keys[rows][:, rows])
    gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for head, read in zip(heads, reads, strict=True):
        at = slice(read * flat, (read + 1) * flat)
        gram[at, at] += moments.queries[head]
    vectors, lost = top_vectors(half @ gram @ half, flat)
    mixing = (vectors.T @ back).reshape(flat, len(old), flat).transpose(0, 1)  # (g, f, f)
    loadings = (half @ vectors).reshape(len(old), flat, flat)
    return loadings[list(reads)], mixing, lost / max(moments.rows, 1)
