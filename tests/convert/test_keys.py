"""The closed form for keys, held against its definition."""

from __future__ import annotations

import pytest
import torch

from manyheads.convert.head_weights import Units
from manyheads.convert.key_merge import KeyMerge, Planes, planes_of
from manyheads.convert.keys import KeyMoments, merge_keys
from manyheads.ops.rope import apply
from manyheads.spec.positions import NoPositions, Rope


class Called:
    """As much of a call of attention as moments read."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor) -> None:
        self.q, self.k = q, k


def drawn(heads: int, kv_heads: int, tokens: int, dim: int, seed: int = 0) -> tuple[Called, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    q = torch.randn(1, heads, tokens, dim, generator=draw, dtype=torch.float64)
    k = torch.randn(1, kv_heads, tokens, dim, generator=draw, dtype=torch.float64)
    logits = torch.randn(1, heads, tokens, tokens, generator=draw, dtype=torch.float64)
    return Called(q, k), logits.softmax(-1)


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
def test_planes_multiply_as_complex_numbers_and_pass_the_rotation(layout: str) -> None:
    shape = planes_of(Rope(6, 100.0, layout), 8)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(1, 1, 5, 8, generator=draw, dtype=torch.float64)
    factor = torch.complex(*torch.randn(2, 3, generator=draw, dtype=torch.float64))
    matrix = shape.matrix(factor, torch.eye(2, dtype=torch.float64))
    torch.testing.assert_close(shape.complex_of(x @ matrix.T), factor * shape.complex_of(x))
    angles = torch.arange(5, dtype=torch.float64)[:, None] * 100.0 ** (-torch.arange(3, dtype=torch.float64) / 3)
    angled = angles.cos(), angles.sin()
    turned = apply(x, *angled, layout)
    torch.testing.assert_close(apply(x @ matrix.T, *angled, layout), turned @ matrix.T)


def test_moments_are_the_variance_of_the_error_of_a_logit() -> None:
    """Error r^T k in one plane: sum over t of |q|^2 (E_A |e|^2 - |E_A e|^2), written out."""
    shape = Planes((0, 1), (2, 3), ())
    call, attention = drawn(2, 3, 7, 4)
    moments = KeyMoments.empty(shape, 2, 3)
    moments.add(call, attention)
    r = torch.complex(*torch.randn(2, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64))
    for head in range(2):
        for plane in range(2):
            error = torch.einsum("k,ks->s", r, shape.complex_of(call.k[0])[..., plane])
            energy = shape.complex_of(call.q[0, head])[:, plane].abs() ** 2
            a = attention[0, head]
            spread = a @ error.abs().square() - (a.to(error.dtype) @ error).abs().square()
            found = (r @ moments.turning[head, plane] @ r.conj()).real
            assert float(found) == pytest.approx(float((energy * spread).sum()))


def lost(moments: KeyMoments, units: Units, merge: KeyMerge) -> float:
    """The energy of e_g - A B, plane by plane, from the maps themselves."""
    shape, total = moments.shape, 0.0
    for group, heads in enumerate(merge.groups):
        for head in heads:
            old = units.kv_heads[head // units.size]
            for plane, (one, two) in enumerate(zip(shape.first, shape.second, strict=True)):

                def number(matrix: torch.Tensor, one: int = one, two: int = two) -> torch.Tensor:
                    return torch.complex(matrix[one, one], matrix[two, one])

                a = number(merge.loadings[head])
                b = torch.stack([number(merge.mixing[group, k]) for k in range(merge.mixing.shape[1])])
                r = -a * b
                r[old] = r[old] + 1
                total += float((r @ moments.turning[head, plane] @ r.conj()).real)
    return total


def test_no_small_change_of_the_maps_loses_less() -> None:
    shape = Planes((0, 1), (2, 3), ())
    call, attention = drawn(6, 3, 9, 4)
    moments = KeyMoments.empty(shape, 6, 3)
    moments.add(call, attention)
    units = Units(2, (0, 1, 2), 1)
    merge = merge_keys(moments, units, units.contiguous())
    best = lost(moments, units, merge)
    whole = sum(float(moments.turning[head, :, head // 2, head // 2].real.sum()) for head in range(6))
    assert merge.left_out == pytest.approx(best / whole)
    draw = torch.Generator().manual_seed(4)
    for _ in range(20):
        turn = torch.complex(*(0.02 * torch.randn(2, 2, generator=draw, dtype=torch.float64))) + 1
        moved = KeyMerge(merge.groups, merge.loadings.clone(), merge.mixing.clone(), 0.0)
        head, old = (int(torch.randint(6, (1,), generator=draw)), int(torch.randint(3, (1,), generator=draw)))
        moved.loadings[head] = moved.loadings[head] @ shape.matrix(turn, torch.zeros(0, 0))
        moved.mixing[0, old] = moved.mixing[0, old] @ shape.matrix(turn.conj() ** 2, torch.zeros(0, 0))
        assert lost(moments, units, moved) >= best * (1 - 1e-6)


def test_without_rotation_shared_keys_are_the_best_of_their_rank() -> None:
    """Weighted by queries and by the spread of keys: what is lost are the lesser singular values."""
    shape = planes_of(NoPositions(), 3)
    call, attention = drawn(4, 4, 30, 3)
    moments = KeyMoments.empty(shape, 4, 4)
    moments.add(call, attention)
    units = Units(1, (0, 1, 2, 3), 1)
    merge = merge_keys(moments, units, units.contiguous())
    error = torch.eye(12, dtype=torch.float64) - torch.cat(list(merge.loadings)) @ torch.cat(list(merge.mixing[0]), 1)
    metric = torch.block_diag(*moments.queries)
    found = float((metric @ error @ moments.keys @ error.T).diagonal().sum())
    energies = torch.linalg.eigvals(metric @ moments.keys).real.sort().values
    assert found == pytest.approx(float(energies[:-3].sum()))


def test_a_group_of_one_old_head_is_left_as_it_is() -> None:
    shape = planes_of(Rope(4), 6)
    call, attention = drawn(4, 2, 9, 6)
    moments = KeyMoments.empty(shape, 4, 2)
    moments.add(call, attention)
    units = Units(2, (0, 1), 2)
    merge = merge_keys(moments, units, units.contiguous())
    assert torch.equal(merge.keys(call.k), call.k)
    assert torch.equal(merge.queries(call.q), call.q)
    assert merge.left_out == 0
