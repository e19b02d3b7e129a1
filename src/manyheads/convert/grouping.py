"""Which heads share: the grouping that loses least, never assumed to be that of neighbours.

The cost of a group is the share of key energy and the share of value energy that one shared head would leave out, from
the moments. Few groups are tried all; of many, the best partition is searched by swaps from several starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb, factorial

import torch
from torch import Tensor

from manyheads.convert.head_weights import HeadWeights, Units
from manyheads.convert.keys import KeyMoments

__all__ = ["Grouping", "best_grouping", "contiguous"]

_MOST_GROUPS = 1000
_MOST_PARTITIONS = 20_000
_STARTS = 4

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Grouping:
    """Units by group. `exact`: every partition was compared; `cost`: of this one, `contiguous_cost`: that of neighbours."""

    groups: Groups
    cost: float
    contiguous_cost: float
    exact: bool


def contiguous(units: Units) -> Grouping:
    """The grouping of neighbours, where no other can be."""
    return Grouping(units.contiguous(), 0.0, 0.0, exact=False)


def best_grouping(weights: HeadWeights, keys: KeyMoments, spread: Tensor, units: Units, *, seed: int = 0) -> Grouping:
    """The grouping of least cost. `spread`: (k v, k v), the covariance of what heads gather of all old values."""
    count, each = len(units.kv_heads), units.each
    if each == 1 or units.groups == 1:
        return contiguous(units)
    every = comb(count, each) <= _MOST_GROUPS
    cost = cache(_costs(weights, keys, spread, units))
    if not every:
        pairs = cost

        def summed(group: tuple[int, ...]) -> float:
            return sum(pairs(pair) for pair in combinations(group, 2))

        cost = cache(summed)

    def total(groups: Groups) -> float:
        return sum(cost(group) for group in groups)

    neighbours = units.contiguous()
    exact = every and _partitions(count, each) <= _MOST_PARTITIONS
    found = _least(tuple(range(count)), each, cost)[1] if exact else _searched(neighbours, total, seed)
    # Of equal ones, that of neighbours: nothing is moved for nothing.
    if total(neighbours) <= total(found) * (1 + 1e-12) + 1e-15:
        found = neighbours
    return Grouping(found, total(found), total(neighbours), exact=exact)


def _partitions(count: int, each: int) -> int:
    groups = count // each
    return factorial(count) // (factorial(each) ** groups * factorial(groups))


def _least(units: tuple[int, ...], each: int, cost: Callable[[tuple[int, ...]], float]) -> tuple[float, Groups]:
    """Of all partitions of `units` the cheapest: the first of them goes with each choice of others."""

    @cache
    def best(left: tuple[int, ...]) -> tuple[float, Groups]:
        if not left:
            return 0.0, ()
        tried = []
        for others in combinations(left[1:], each - 1):
            group = (left[0], *others)
            rest = best(tuple(unit for unit in left if unit not in group))
            tried.append((cost(group) + rest[0], (group, *rest[1])))
        return min(tried)

    return best(units)


def _searched(start: Groups, total: Callable[[Groups], float], seed: int) -> Groups:
    """The best of swap searches from neighbours and from a few shuffles."""
    draw = random.Random(seed)  # noqa: S311  nothing secret hangs on it
    units, each = [unit for group in start for unit in group], len(start[0])
    found = []
    for number in range(_STARTS):
        order = units if not number else draw.sample(units, len(units))
        groups = tuple(tuple(sorted(order[at : at + each])) for at in range(0, len(order), each))
        found.append(_swapped(groups, total))
    return min(found, key=total)


def _swapped(groups: Groups, total: Callable[[Groups], float]) -> Groups:
    """Swaps two units of different groups as long as that helps."""
    now, improved = total(groups), True
    while improved:
        improved = False
        for one, other in combinations(range(len(groups)), 2):
            for a in groups[one]:
                for b in groups[other]:
                    tried = _with_swap(groups, one, other, a, b)
                    if tried is not None and (cost := total(tried)) < now * (1 - 1e-12):
                        groups, now, improved = tried, cost, True
    return tuple(sorted(groups))


def _with_swap(groups: Groups, one: int, other: int, a: int, b: int) -> Groups | None:
    """None where an earlier swap has moved one of the two already."""
    if a not in groups[one] or b not in groups[other]:
        return None
    made = list(groups)
    made[one] = tuple(sorted({*groups[one]} - {a} | {b}))
    made[other] = tuple(sorted({*groups[other]} - {b} | {a}))
    return tuple(made)


def _costs(weights: HeadWeights, keys: KeyMoments, spread: Tensor, units: Units) -> Callable[[tuple[int, ...]], float]:
    """The cost of a group: shares of energy beyond one key and one value."""
    size, flat = weights["o"].shape[2], len(keys.shape.flat)
    by_old = [list(range(k * size, (k + 1) * size)) for k in range(weights["v"].shape[0])]
    values_total = sum(_value_energy(weights, spread, units, (unit,), by_old)[1] for unit in range(len(units.kv_heads)))
    keys_total = sum(
        float(keys.turning[head, :, old, old].real.sum())
        for unit, old in enumerate(units.kv_heads) for head in units.heads(unit)
    )  # fmt: skip
    flat_total = sum(_flat_energy(keys, units, (unit,), flat)[1] for unit in range(len(units.kv_heads)))

    def cost(group: tuple[int, ...]) -> float:
        heads, old = units.heads_of(group), units.old_of(group)
        if len(old) == 1:
            return 0.0
        found = 0.0
        if keys.shape.first:
            summed = keys.turning[heads].sum(0)[:, old][:, :, old]
            found += float(torch.linalg.eigvalsh((summed + summed.mH) / 2)[:, :-1].clamp_min(0).sum()) / max(
                keys_total * len(old), 1e-300
            )
        if flat:
            found += _flat_energy(keys, units, group, flat)[0] / max(flat_total, 1e-300)
        return found + _value_energy(weights, spread, units, group, by_old)[0] / max(values_total, 1e-300)

    return cost


def _value_energy(
    weights: HeadWeights, spread: Tensor, units: Units, group: Sequence[int], by_old: Sequence[list[int]]
) -> tuple[float, float]:
    """(energy beyond one shared value, energy of all) of the values of a group under W_O."""
    old = units.old_of(group)
    size = len(by_old[0])
    metric = torch.zeros(len(old) * size, len(old) * size, dtype=torch.float64)
    for unit in group:
        at = old.index(units.kv_heads[unit])
        output = weights["o"][:, list(units.heads(unit))].reshape(-1, size)  # (m h, v)
        metric[at * size : (at + 1) * size, at * size : (at + 1) * size] += output.T @ output
    rows = [row for k in old for row in by_old[k]]
    return _beyond(metric, spread[rows][:, rows], size)


def _flat_energy(keys: KeyMoments, units: Units, group: Sequence[int], flat: int) -> tuple[float, float]:
    """(energy beyond one shared key, energy of all) of what does not turn."""
    if not flat:
        return 0.0, 0.0
    old = units.old_of(group)
    metric = torch.zeros(len(old) * flat, len(old) * flat, dtype=torch.float64)
    for unit in group:
        at = old.index(units.kv_heads[unit])
        metric[at * flat : (at + 1) * flat, at * flat : (at + 1) * flat] += keys.queries[list(units.heads(unit))].sum(0)
    rows = [row for k in old for row in range(k * flat, (k + 1) * flat)]
    return _beyond(metric, keys.keys[rows][:, rows], flat)


def _beyond(metric: Tensor, spread: Tensor, size: int) -> tuple[float, float]:
    """Eigenvalues of metric · spread beyond the `size` largest, and all of them, summed: energies of a weighted covariance."""
    values, vectors = torch.linalg.eigh((spread + spread.T) / 2)
    half = vectors * values.clamp_min(0).sqrt()
    energies = torch.linalg.eigvalsh(half.T @ metric @ half).clamp_min(0)
    return float(energies[:-size].sum()), float(energies.sum())
