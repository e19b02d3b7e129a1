"""The closed form for values: it fits what it says, keeps an exact solution, and every round loses less."""

from __future__ import annotations

import pytest
import torch

from manyheads.convert.head_weights import HeadWeights, Units
from manyheads.convert.values import ValueMoments, fit_values, start_values
from manyheads.spec.attention import AttentionSpec

F64 = torch.float64
H, K, V, M, T = 4, 4, 3, 10, 4000


def layer(bias: str = "") -> HeadWeights:
    draw = torch.Generator().manual_seed(0)
    spec = AttentionSpec.mha(M, H, head_dim=V, bias=bias)
    shapes = {"q": (H, V, M), "k": (K, V, M), "v": (K, V, M), "o": (M, H, V)}
    shapes |= {"v.bias": (K, V)} if "v" in bias else {}
    shapes |= {"o.bias": (M,)} if "o" in bias else {}
    return HeadWeights(spec, {name: torch.randn(shape, generator=draw, dtype=F64) for name, shape in shapes.items()})


def gathered(weights: HeadWeights, *, offset: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """u (t, h, k v), as heads of different attention would gather it, and y (t, m) of the own value of each."""
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(T, 1, M, generator=draw, dtype=F64) + 0.5 * torch.randn(T, H, M, generator=draw, dtype=F64) + offset
    u = torch.einsum("thm,kvm->thkv", x, weights["v"])
    if (bias := weights.get("v.bias")) is not None:
        u = u + bias
    own = u[:, torch.arange(H), torch.arange(H)]
    return u.flatten(2), torch.einsum("thv,mhv->tm", own, weights["o"])


def fitted(weights: HeadWeights, groups: tuple[tuple[int, ...], ...], rounds: int, u: torch.Tensor, y: torch.Tensor):  # type: ignore[no-untyped-def]
    units = Units(1, tuple(range(K)), len(groups))
    olds = {head: units.old_of(group) for group in groups for head in group}
    own = [u[:, h].unflatten(1, (K, V))[:, olds[h]].flatten(1) for h in range(H)]
    halves = [ValueMoments.empty(sum(each.shape[1] for each in own), M) for _ in range(2)]
    for number, rows in enumerate(torch.arange(T).chunk(8)):
        halves[number % 2].add(torch.cat([each[rows] for each in own], 1), y[rows])
    grams = [sum(own[h].T @ own[h] for h in group) for group in groups]
    mixings, start, _ = start_values(weights, grams, units, groups)
    return fit_values(weights, halves, units, groups, mixings, start, rounds=rounds)


def error(
    merge, u: torch.Tensor, y: torch.Tensor, groups: tuple[tuple[int, ...], ...], bias: torch.Tensor | None
) -> float:  # type: ignore[no-untyped-def]
    """The share of the energy of y that the merged values lose, written out."""
    whole = torch.zeros_like(y)
    for group, heads in enumerate(groups):
        for head in heads:
            shared = torch.einsum("tkv,kcv->tc", u[:, head].unflatten(1, (K, V)), merge.mixing[group])
            whole += shared @ merge.output[:, head].T
    if bias is not None:
        whole = whole + merge.o_bias - bias
    return float((y - whole).square().sum() / (y.square().sum() if bias is None else (y - y.mean(0)).square().sum()))


@pytest.mark.parametrize("groups", [((0, 1, 2, 3),), ((0, 2), (1, 3))])
def test_what_it_says_it_leaves_out_is_what_is_missing(groups: tuple[tuple[int, ...], ...]) -> None:
    weights = layer()
    u, y = gathered(weights)
    merge = fitted(weights, groups, 2, u, y)
    assert merge.left_out == pytest.approx(error(merge, u, y, groups, None))
    assert 0 < merge.left_out < 1


def test_every_round_loses_less() -> None:
    weights = layer()
    u, y = gathered(weights)
    lost = [fitted(weights, ((0, 1, 2, 3),), rounds, u, y).left_out for rounds in range(5)]
    assert lost == sorted(lost, reverse=True)
    assert lost[-1] < lost[0]


def test_the_output_bias_takes_up_the_means() -> None:
    weights = layer("vo")
    u, y = gathered(weights, offset=2.0)
    groups = ((0, 1, 2, 3),)
    merge = fitted(weights, groups, 2, u, y)
    assert merge.left_out == pytest.approx(error(merge, u, y, groups, weights["o.bias"]))


@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_values_that_are_images_of_one_lose_nothing(condition: float) -> None:
    draw = torch.Generator().manual_seed(2)
    weights = layer()
    maps = []
    for _ in range(K):
        left, _, right = torch.linalg.svd(torch.randn(V, V, generator=draw, dtype=F64))
        maps.append(left @ torch.diag(torch.logspace(0, -float(torch.tensor(condition).log10()), V, dtype=F64)) @ right)
    weights = HeadWeights(
        weights.spec, {**weights.tensors, "v": torch.stack([each @ weights["v"][0] for each in maps])}
    )
    u, y = gathered(weights)
    merge = fitted(weights, ((0, 1, 2, 3),), 2, u, y)
    assert error(merge, u, y, ((0, 1, 2, 3),), None) < 1e-10
