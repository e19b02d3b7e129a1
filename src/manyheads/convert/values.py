"""The closed form for values: one shared value for a group, and the output projection that makes the best of it.

With A' the attention AFTER the merge of the keys and u_h(t) = sum_s A'_h(t, s) v(s), v all old values of the group,

    y(t) ~ sum_h W_h C_n(h) u_h(t),     y what the attention gave before,

least squares in C_n (v x g v) and W_h (m x v) in turn, on moments alone: E[u u^T] and E[y u^T]. It starts from the
low-rank map that loses least under W_O, and holds on to it by a ridge, so that an exact solution stays one. Where the
attention has an output bias, the means are taken out and the bias takes up what is left of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyheads.convert.head_weights import HeadWeights, Units
from manyheads.convert.key_merge import KeyMerge
from manyheads.convert.small_matrices import one_thread, root, top_vectors
from manyheads.models.door.door import Call
from manyheads.ops import softmax

__all__ = ["ValueMerge", "ValueMoments", "fit_values", "merged_attention", "start_values", "token_weights"]

# Shares of the mean of a diagonal; the one that text which it was not fitted on likes best.
_RIDGES = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
_RIDGE = 1e-2
_STEPS = 8
_CONVERGED = 1e-10


@dataclass(frozen=True, eq=False)
class ValueMerge:
    """Shared values of one attention.

    mixing    C (n, k, v, v): c_n = sum_g C_ng v_g, zero for old heads that a group does not read
    output    W (m, h, v), query heads in their old order;  o_bias: the new output bias, None where there is none
    left_out  share of the energy of the output that is lost, on the calibration text
    """

    mixing: Tensor
    output: Tensor
    o_bias: Tensor | None
    left_out: float

    def moved_into(self, weights: HeadWeights) -> dict[str, Tensor]:
        """The new v and o, and their biases, with query heads still in their old order."""
        made = {"v": torch.einsum("kdm,nked->nem", weights["v"], self.mixing), "o": self.output}
        v_bias = weights.get("v.bias")
        if v_bias is not None:
            made["v_bias"] = torch.einsum("kd,nked->ne", v_bias, self.mixing)
        if self.o_bias is not None:
            made["o_bias"] = self.o_bias
        return made


@dataclass(eq=False)
class ValueMoments:
    """Sums over the calibration text of u, all heads one after the other (their old values, or shared ones), and of y.

    gram (D, D): u u^T;  cross (m, D): y u^T;  sums (D,) and y_sum (m,);  y_energy: |y|^2;  rows: tokens; all of them weighted
    """

    gram: Tensor
    cross: Tensor
    sums: Tensor
    y_sum: Tensor
    y_energy: float = 0.0
    rows: float = 0.0

    @classmethod
    def of(cls, parts: Sequence[ValueMoments]) -> ValueMoments:
        """The sums of several parts of a text."""
        return cls(
            sum(each.gram for each in parts), sum(each.cross for each in parts), sum(each.sums for each in parts),
            sum(each.y_sum for each in parts), sum(each.y_energy for each in parts), sum(each.rows for each in parts),
        )  # type: ignore[arg-type]  # fmt: skip

    @classmethod
    def empty(cls, width: int, d_model: int) -> ValueMoments:
        """Nothing seen yet."""
        f64 = torch.float64
        return cls(
            torch.zeros(width, width, dtype=f64), torch.zeros(d_model, width, dtype=f64),
            torch.zeros(width, dtype=f64), torch.zeros(d_model, dtype=f64),
        )  # fmt: skip

    def add(self, u: Tensor, y: Tensor, weight: Tensor | None = None) -> None:
        """u (t, D) and y (t, m) of some tokens, in float64; `weight` (t,): how much each counts, one without."""
        some = torch.ones(len(u), dtype=u.dtype) if weight is None else weight
        scale = some.sqrt().unsqueeze(1)
        rows, out = u * scale, y * scale
        _add_gram(self.gram, rows)
        self.cross += out.T @ rows
        self.sums += some @ u
        self.y_sum += some @ y
        self.y_energy += float((out * out).sum())
        self.rows += float(some.sum())

    def centred(self) -> tuple[Tensor, Tensor, float]:
        """(gram, cross, y_energy) without the means: what is left for an attention whose bias takes these."""
        n = max(self.rows, 1e-300)
        mean, y_mean = self.sums / n, self.y_sum / n
        gram = self.gram - n * torch.outer(mean, mean)
        cross = self.cross - n * torch.outer(y_mean, mean)
        return gram, cross, self.y_energy - n * float(y_mean @ y_mean)


def token_weights(y: Tensor) -> Tensor:
    """(t,): a token's error counts by the size of its output, down to the usual size: a few tokens with outputs of a hundred
    times that, as the first ones have, would decide the fit, and the norms behind them take their size away again."""
    energy = (y * y).sum(1)
    return 1 / (energy + energy.median()).clamp_min(1e-300)


_BLOCK = 512


def _add_gram(gram: Tensor, u: Tensor) -> None:
    """gram += u^T u, computing one half of it."""
    width = u.shape[1]
    for low in range(0, width, _BLOCK):
        rows = slice(low, min(low + _BLOCK, width))
        rest = slice(rows.stop, width)
        gram[rows, rows] += u[:, rows].T @ u[:, rows]
        if rest.start < width:
            part = u[:, rows].T @ u[:, rest]
            gram[rows, rest] += part
            gram[rest, rows] += part.T


def merged_attention(call: Call, merge: KeyMerge) -> Tensor:
    """A' (b, h, t, s) of a call, in the order of its query heads: what the merged keys make of its mask, cap and sinks."""
    keys = merge.keys(call.k)[:, merge.of_head()]
    values = call.v[:, :1].expand(-1, keys.shape[1], -1, -1)  # unread: probabilities depend on queries and keys
    return softmax.logits(replace(call, q=merge.queries(call.q), k=keys, v=values), "probabilities")


@dataclass(frozen=True, eq=False)
class _Problem:
    """Moments with the layout of D: `slots[h]` are the columns of head h, over the old heads of its group."""

    gram: Tensor
    cross: Tensor
    slots: tuple[slice, ...]
    of_head: tuple[int, ...]
    energy: float


def start_values(
    weights: HeadWeights, grams: Sequence[Tensor], units: Units, groups: Sequence[Sequence[int]]
) -> tuple[list[Tensor], Tensor, float]:
    """(C of each group (v, g v), W (m, h, v), energy left out): the low-rank map that loses least under W_O.

    grams  of each group, sum over its heads of E[u u^T], (g v, g v)
    """
    output, size = weights["o"], weights["o"].shape[2]
    made, start, lost = [], output.clone(), 0.0
    for group, gram in zip(groups, grams, strict=True):
        olds, heads = units.old_of(group), units.heads_of(group)
        if len(olds) == 1:
            made.append(torch.eye(size, dtype=torch.float64))
            continue
        metric = torch.zeros_like(gram)
        for head in heads:
            at = olds.index(units.kv_heads[head // units.size])
            rows = slice(at * size, (at + 1) * size)
            metric[rows, rows] += output[:, head].T @ output[:, head]
        half, back = root(gram)
        vectors, left = top_vectors(half @ metric @ half, size)
        lost += left / len(heads)
        mixing, loading = vectors.T @ back, half @ vectors  # v_all ~ loading @ (mixing @ v_all)
        spread = (
            (mixing @ mixing.T).diagonal().mean().sqrt().clamp_min(1e-300)
        )  # rows of C of about one: no gain of scale
        mixing, loading = mixing / spread, loading * spread
        made.append(mixing)
        for head in heads:
            at = olds.index(units.kv_heads[head // units.size])
            start[:, head] = output[:, head] @ loading[at * size : (at + 1) * size]
    return made, start, lost


def fit_values(
    weights: HeadWeights,
    halves: Sequence[ValueMoments],
    units: Units,
    groups: Sequence[Sequence[int]],
    mixings: Sequence[Tensor],
    start: Tensor,
    *,
    rounds: int,
    reduced: bool = False,
) -> ValueMerge:
    """Ridge for W_O, then up to `rounds` times conjugate gradients for C and ridge again.

    halves   moments of two halves of the text: what is fitted on one is judged on the other, and so the ridge is chosen, and
             a round taken only where it loses less there
    reduced  u is in shared values already: W alone is fitted
    """
    intercept, size = weights.spec.bias.o, weights["o"].shape[2]
    held = [torch.eye(mixing.shape[0], dtype=torch.float64) for mixing in mixings] if reduced else list(mixings)
    whole = ValueMoments.of(halves)
    seen = [each for each in halves if each.rows]
    parts = [_problem(each, units, groups, size, intercept=intercept, reduced=reduced) for each in seen]
    problem = _problem(whole, units, groups, size, intercept=intercept, reduced=reduced)
    ridge, judged = _best_ridge([_reduced(part, held) for part in parts], start)
    output = _solved(_reduced(problem, held), start, ridge)
    for _ in range(0 if reduced or len(parts) < 2 else rounds):
        tried = [_mixing_step(part, held, output) for part in parts]
        again = [
            (_reduced(part, own), _reduced(other, own))
            for part, other, own in zip(parts, reversed(parts), tried, strict=True)
        ]
        now = sum(_lost(other, _solved(own, output, ridge)) for own, other in again)
        if not now < judged * (1 - _CONVERGED):
            break
        held, judged = _mixing_step(problem, held, output), now
        output = _solved(_reduced(problem, held), output, ridge)
    fitted = _reduced(problem, held)
    final = list(mixings) if reduced else held
    o_bias = weights.get("o.bias")
    if intercept and o_bias is not None:
        n = max(whole.rows, 1e-300)
        o_bias = o_bias + whole.y_sum / n - _times(problem, held, output) @ (whole.sums / n)
    mixing = _spread_out(final, units, groups, weights["v"].shape[0])
    return ValueMerge(mixing, output, o_bias, max(_lost(fitted, output), 0.0) / max(problem.energy, 1e-300))


def _problem(
    moments: ValueMoments,
    units: Units,
    groups: Sequence[Sequence[int]],
    size: int,
    *,
    intercept: bool,
    reduced: bool,
) -> _Problem:
    gram, cross, energy = moments.centred() if intercept else (moments.gram, moments.cross, moments.y_energy)
    of_head = {head: group for group, members in enumerate(groups) for head in units.heads_of(members)}
    widths = [size * (1 if reduced else len(units.old_of(groups[of_head[head]]))) for head in range(len(of_head))]
    ends = torch.tensor(widths).cumsum(0).tolist()
    slots = tuple(slice(end - width, end) for end, width in zip(ends, widths, strict=True))
    return _Problem(gram, cross, slots, tuple(of_head[head] for head in range(len(of_head))), energy)


def _spread_out(mixings: Sequence[Tensor], units: Units, groups: Sequence[Sequence[int]], old: int) -> Tensor:
    size = mixings[0].shape[0]
    made = torch.zeros(len(groups), old, size, size, dtype=torch.float64)
    for group, (members, mixing) in enumerate(zip(groups, mixings, strict=True)):
        for at, number in enumerate(units.old_of(members)):
            made[group, number] = mixing[:, at * size : (at + 1) * size]
    return made


def _times(problem: _Problem, mixings: Sequence[Tensor], output: Tensor) -> Tensor:
    """[W_1 C, W_2 C, ...] (m, D): the map from u to y."""
    return torch.cat([output[:, head] @ mixings[group] for head, group in enumerate(problem.of_head)], 1)


@dataclass(frozen=True, eq=False)
class _Reduced:
    """Moments of shared values c_h = C u_h: gram (h v, h v), cross (m, h v), and |y|^2."""

    gram: Tensor
    cross: Tensor
    energy: float


def _reduced(problem: _Problem, mixings: Sequence[Tensor]) -> _Reduced:
    each = list(zip(problem.slots, problem.of_head, strict=True))
    half = torch.cat([mixings[group] @ problem.gram[slot] for slot, group in each])  # (h v, D)
    gram = torch.cat([half[:, slot] @ mixings[group].T for slot, group in each], 1)
    cross = torch.cat([problem.cross[:, slot] @ mixings[group].T for slot, group in each], 1)
    return _Reduced(gram, cross, problem.energy)


def _lost(moments: _Reduced, output: Tensor) -> float:
    """|y - W c|^2."""
    flat = output.flatten(1)
    return moments.energy + float(((flat @ moments.gram - 2 * moments.cross) * flat).sum())


def _solved(moments: _Reduced, near: Tensor, ridge: float) -> Tensor:
    """The W that loses least, held near `near` where the text says little."""
    damped = moments.gram + ridge * moments.gram.diagonal().mean() * torch.eye(len(moments.gram), dtype=near.dtype)
    before = near.flatten(1)
    step = torch.linalg.solve(damped, (moments.cross - before @ moments.gram).T).T
    return (before + step).reshape(near.shape)


def _best_ridge(halves: Sequence[_Reduced], near: Tensor) -> tuple[float, float]:
    """(ridge, what it loses) of those in `_RIDGES` that lose least of one half when fitted on the other."""
    if len(halves) < 2:
        return _RIDGE, float("inf")
    lost = dict.fromkeys(_RIDGES, 0.0)
    for own, other in zip(halves, reversed(halves), strict=True):
        with one_thread():
            values, vectors = torch.linalg.eigh(own.gram)
        before = near.flatten(1)
        target = (own.cross - before @ own.gram) @ vectors
        # Both moments of the other half in these directions, once for all ridges.
        gram, cross = vectors.T @ other.gram @ vectors, (other.cross - before @ other.gram) @ vectors
        first = _lost(other, near)
        for ridge in _RIDGES:
            step = target / (values.clamp_min(0) + ridge * own.gram.diagonal().mean()).clamp_min(1e-300)
            lost[ridge] += first + float(((step @ gram - 2 * cross) * step).sum())
    return min(lost.items(), key=lambda item: item[1])


def _mixing_step(problem: _Problem, mixings: Sequence[Tensor], output: Tensor) -> list[Tensor]:
    """C by conjugate gradients for fixed W, no pass over the text: sum_h' W_h^T W_h' C u_h' u_h^T = W_h^T y u_h^T.

    Preconditioned on both sides by the sums over a group's heads, without what couples different heads.
    """
    whole = [mixing.clone() for mixing in mixings]
    flat = output.flatten(1)
    inner, size = flat.T @ flat, output.shape[2]  # (h v, h v)
    rows = [slice(head * size, (head + 1) * size) for head in range(output.shape[1])]
    target = [torch.zeros_like(mixing) for mixing in mixings]
    left = [torch.zeros(size, size, dtype=flat.dtype) for _ in mixings]
    right = [torch.zeros(mixing.shape[1], mixing.shape[1], dtype=flat.dtype) for mixing in mixings]
    for row, slot, group in zip(rows, problem.slots, problem.of_head, strict=True):
        target[group] += flat[:, row].T @ problem.cross[:, slot]
        left[group] += inner[row, row]
        right[group] += problem.gram[slot, slot]
    # A change of C is held back where the values of the text vary little, as one of W is.
    damping = [_RIDGE / len(rows) * float(each.diagonal().mean()) for each in right]
    metric = [each.clone() for each in left]
    right = [
        _inverse(each + d * len(rows) * torch.eye(len(each), dtype=each.dtype))
        for each, d in zip(right, damping, strict=True)
    ]
    left = [_inverse(each) for each in left]

    def image(step: Sequence[Tensor], *, held: bool = True) -> list[Tensor]:
        moved = torch.cat(
            [step[group] @ problem.gram[slot] for slot, group in zip(problem.slots, problem.of_head, strict=True)]
        )
        found = [torch.zeros_like(mixing) for mixing in mixings]
        for row, slot, group in zip(rows, problem.slots, problem.of_head, strict=True):
            found[group] += inner[row] @ moved[:, slot]
        if held:
            return [each + d * one @ way for each, d, one, way in zip(found, damping, metric, step, strict=True)]
        return found

    def eased(rest: Sequence[Tensor]) -> list[Tensor]:
        return [one @ each @ other for one, each, other in zip(left, rest, right, strict=True)]

    residual = [one - other for one, other in zip(target, image(whole, held=False), strict=True)]
    direction = eased(residual)
    along = first = _dot(residual, direction)
    for _ in range(_STEPS):
        if not along > 1e-12 * first:
            break
        moved = image(direction)
        curve = _dot(direction, moved)
        if curve <= 0:
            break
        step = along / curve
        whole = [each + step * way for each, way in zip(whole, direction, strict=True)]
        residual = [rest - step * each for rest, each in zip(residual, moved, strict=True)]
        better = eased(residual)
        new = _dot(residual, better)
        direction = [each + (new / along) * way for each, way in zip(better, direction, strict=True)]
        along = new
    return whole


def _inverse(matrix: Tensor) -> Tensor:
    back = root(matrix)[1]
    return back @ back


def _dot(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    return sum(float((a * b).sum()) for a, b in zip(one, other, strict=True))
