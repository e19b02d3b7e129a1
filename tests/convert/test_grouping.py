"""Which heads share: all partitions of a few, and a search that finds what was hidden among many."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch

from manyheads.convert import grouping
from manyheads.convert.grouping import best_grouping
from manyheads.convert.head_weights import HeadWeights, Units
from manyheads.convert.key_merge import planes_of
from manyheads.convert.keys import KeyMoments
from manyheads.spec.attention import AttentionSpec
from manyheads.spec.positions import Rope

F64 = torch.float64


def layer(heads: int, base: list[int], *, noise: float) -> tuple[HeadWeights, KeyMoments, torch.Tensor]:
    """Moments of heads that are, but for noise, images of those that `base` names."""
    draw = torch.Generator().manual_seed(0)
    dim, rope = 4, Rope(4)
    spec = AttentionSpec.gqa(heads * dim, heads, heads, head_dim=dim, positions=rope)
    shape = planes_of(rope, dim)
    keys = torch.randn(max(base) + 1, 300, 2, generator=draw, dtype=torch.complex128)
    turned = torch.stack([keys[b] for b in base]) * torch.randn(heads, 1, 2, generator=draw, dtype=torch.complex128)
    turned = turned + noise * torch.randn(turned.shape, generator=draw, dtype=torch.complex128)
    gram = torch.einsum("ksj,lsj->jkl", turned, turned.conj())
    moments = KeyMoments(
        shape, gram.expand(heads, 2, heads, heads).clone(), torch.zeros(heads, 0, 0), torch.zeros(0, 0)
    )
    values = torch.randn(max(base) + 1, 300, dim, generator=draw, dtype=F64)
    own = torch.cat([values[b] @ torch.randn(dim, dim, generator=draw, dtype=F64) for b in base], 1)
    own = own + noise * torch.randn(own.shape, generator=draw, dtype=F64)
    o = torch.randn(heads * dim, heads, dim, generator=draw, dtype=F64)
    v = torch.zeros(heads, dim, heads * dim, dtype=F64)
    return HeadWeights(spec, {"q": v, "k": v, "v": v, "o": o}), moments, own.T @ own


@pytest.mark.parametrize(("heads", "groups"), [(6, 3), (6, 2), (9, 3), (12, 4)])
def test_hidden_groups_of_a_few_are_found_among_all(heads: int, groups: int) -> None:
    base = [(7 * head + head // groups) % groups for head in range(heads)]
    base = sorted(range(heads), key=lambda head: (head * 5) % heads)
    base = [number % groups for number in base]
    found = best_grouping(*layer(heads, base, noise=0.05), Units(1, tuple(range(heads)), groups))
    assert found.exact
    assert all(len({base[unit] for unit in group}) == 1 for group in found.groups)
    assert found.cost < found.contiguous_cost


def test_hidden_groups_of_many_are_found_by_swaps() -> None:
    base = [(number * 7) % 24 % 6 for number in range(24)]
    found = best_grouping(*layer(24, base, noise=0.02), Units(1, tuple(range(24)), 6))
    assert not found.exact
    assert all(len({base[unit] for unit in group}) == 1 for group in found.groups)


def test_all_partitions_are_compared() -> None:
    weights, keys, spread = layer(6, [0, 1, 2, 3, 4, 5], noise=1.0)
    units = Units(1, tuple(range(6)), 3)
    cost = grouping._costs(weights, keys, spread, units)
    tried = {tuple(sorted(tuple(sorted(order[at : at + 2])) for at in (0, 2, 4))) for order in permutations(range(6))}
    least = min(tried, key=lambda groups: sum(cost(group) for group in groups))
    assert len(tried) == 15
    assert best_grouping(weights, keys, spread, units).groups == least


def test_one_group_and_groups_of_one_leave_no_choice() -> None:
    weights, keys, spread = layer(4, [0, 1, 2, 3], noise=1.0)
    assert best_grouping(weights, keys, spread, Units(1, (0, 1, 2, 3), 1)).groups == ((0, 1, 2, 3),)
    assert best_grouping(weights, keys, spread, Units(1, (0, 1, 2, 3), 4)).groups == ((0,), (1,), (2,), (3,))
