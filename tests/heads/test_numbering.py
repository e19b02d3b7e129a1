"""After heads were removed, everything that looks at heads calls the others by the numbers that they first had."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from manyheads.checkpoints.pruned import KEY
from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.attention_weights import measure_heads
from manyheads.heads.effects import ablate_heads, ablated, head_importance, removal_curve
from manyheads.heads.gates import gated, train_gates
from manyheads.heads.page.maps import head_maps
from manyheads.heads.pruning import choose_heads, mask, prune
from manyheads.heads.statistics import head_statistics
from manyheads.models.door.door import open_door
from support import rounding
from support.tiny_transformers import build, inputs

# 3 layers of 6 heads in 2 groups of 3. Of layer 0 a query of each group goes, so that each keeps two; of layer 1 a whole group.
GONE = {0: (0, 4), 1: (3, 4, 5)}
LEFT = [[1, 2, 3, 5], [0, 1, 2], [0, 1, 2, 3, 4, 5]]


@pytest.fixture(scope="module")
def pair() -> tuple[Any, Any, Any]:
    """A model, the same without `GONE`, and tokens."""
    whole, smaller = (build("qwen3", dtype=torch.float64) for _ in range(2))
    smaller.load_state_dict(whole.state_dict())
    prune(smaller, GONE)
    return whole, smaller, inputs("qwen3")["input_ids"]


def test_statistics_have_a_column_for_each_original_head(pair: Any) -> None:
    _, smaller, ids = pair
    found = head_statistics(smaller, [ids])
    assert found.entropy.shape == (3, 6)
    for row, left in enumerate(LEFT):
        assert np.flatnonzero(~np.isnan(found.entropy[row])).tolist() == left
        assert np.flatnonzero(~np.isnan(found.output_norm[row])).tolist() == left


def test_statistics_of_what_is_left_are_those_of_the_masked_model(pair: Any) -> None:
    whole, smaller, ids = pair
    with open_door(whole, gates=[mask(whole, GONE)]):
        masked = head_statistics(whole, [ids])
    found = head_statistics(smaller, [ids])
    for row, left in enumerate(LEFT):
        np.testing.assert_allclose(found.entropy[row, left], masked.entropy[row, left], atol=1e-9)
        np.testing.assert_allclose(found.mass["first"][row, left], masked.mass["first"][row, left], atol=1e-9)
        np.testing.assert_allclose(found.output_norm[row, left], masked.output_norm[row, left], atol=1e-9)


@pytest.mark.parametrize("method", ["first-order", "zero", "mean"])
def test_importance_is_that_of_the_masked_model(pair: Any, method: str) -> None:
    whole, smaller, ids = pair
    with open_door(whole, gates=[mask(whole, GONE)]):
        masked = head_importance(whole, [ids], method=method)
    found = head_importance(smaller, [ids], method=method)
    assert found.heads() == tuple(Head(row, head) for row, left in enumerate(LEFT) for head in left)
    for head in found.heads():
        assert math.isclose(found.score(head), masked.score(head), abs_tol=1e-9)


def test_a_group_is_what_is_left_of_it(pair: Any) -> None:
    _, smaller, ids = pair
    found = ablate_heads(smaller, [ids], unit="group", heads=[Head(0, 1)])
    assert found.heads() == (Head(0, 1), Head(0, 2))
    with ablated(smaller, [Head(0, 1), Head(0, 2)]):
        lost = head_importance(smaller, [ids], method="zero", heads=[Head(1, 0)]).baseline
    assert math.isclose(found.score(Head(0, 1)), lost - found.baseline, abs_tol=1e-9)


def test_taking_more_away_is_taking_all_away_from_the_whole(pair: Any) -> None:
    whole, smaller, ids = pair
    order = [Head(0, 5), Head(1, 2)]
    curve = removal_curve(smaller, [ids], order, counts=[0, 1, 2])
    for count, value in zip(curve.counts, curve.values, strict=True):
        gone = [Head(layer, head) for layer, heads in GONE.items() for head in heads] + order[:count]
        expected = removal_curve(whole, [ids], gone, counts=[len(gone)]).values[0]
        assert math.isclose(value, expected, abs_tol=1e-9)


def test_a_head_that_went_is_named(pair: Any) -> None:
    _, smaller, ids = pair
    with pytest.raises(ManyheadsError, match=r"head 0:4 was removed before; its layer still has 1, 2, 3, 5"):
        head_importance(smaller, [ids], heads={0: (4,)})
    with pytest.raises(ManyheadsError, match="layer 0 has 6 heads, 0 to 5"):
        head_importance(smaller, [ids], heads={0: (6,)})


def test_what_is_least_important_can_be_handed_to_prune(pair: Any) -> None:
    whole, smaller, ids = pair
    least = head_importance(smaller, [ids], method="zero").ranking()[0]
    with rounding.Wide(), ablated(smaller, [least]):  # its norms compute in float32
        expected = smaller(ids).logits
    more = build("qwen3", dtype=torch.float64)
    more.load_state_dict(whole.state_dict())
    prune(more, GONE)
    done = prune(more, [least])
    assert [(head.layer, head.head) for head in done.plan.new] == [(least.layer, least.head)]
    with rounding.Wide():
        torch.testing.assert_close(more(ids).logits, expected, atol=1e-12, rtol=0)


def test_gates_close_heads_by_their_numbers(pair: Any) -> None:
    _, smaller, ids = pair
    gates = train_gates(smaller, [ids], penalty=100.0, steps=60, rate=0.5)
    assert gates.closed() == tuple(Head(row, head) for row, left in enumerate(LEFT) for head in left)
    assert gates.expected[0] == pytest.approx(13 * 0.97, abs=0.5)  # 13 heads that start open with probability 0.97
    with gated(smaller, gates):
        by_gates = smaller(ids).logits
    with ablated(smaller, gates.closed()):
        torch.testing.assert_close(by_gates, smaller(ids).logits)


def test_roles_and_maps_use_the_same_numbers(pair: Any) -> None:
    _, smaller, ids = pair
    heads, values = measure_heads(smaller, [{"input_ids": ids}], lambda attention, _: attention.weights.sum((-1, -2)))
    assert heads == tuple(Head(row, head) for row, left in enumerate(LEFT) for head in left)
    assert values.shape[1] == 13
    maps = head_maps(smaller, {"input_ids": ids[:1]})
    assert [head for layer in maps.layers for _, head in layer.addresses()] == list(heads)


def test_heads_of_zeros_are_no_heads() -> None:
    """A group that keeps fewer queries than its neighbour is filled up with zeros, which no table shows."""
    model, ids = build("qwen3"), inputs("qwen3")["input_ids"]
    prune(model, {0: (0, 1)})
    left = [[2, 3, 4, 5], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]]
    expected = tuple(Head(row, head) for row, heads in enumerate(left) for head in heads)
    assert head_importance(model, [ids]).heads() == expected
    assert ablate_heads(model, [ids]).heads() == expected
    assert [np.flatnonzero(~np.isnan(row)).tolist() for row in head_statistics(model, [ids]).entropy] == left
    assert train_gates(model, [ids], penalty=0.0, steps=8).kept() == expected
    chosen = choose_heads(model, [ids], 2, method="zero")
    assert {(head.layer, head.head) for head in chosen.heads} <= {(head.layer, head.head) for head in expected}


def test_encoder_decoders_keep_their_stages() -> None:
    model, given = build("bart"), inputs("bart")
    prune(model, {"cross": {0: (0,), 1: (0,)}})
    found = head_statistics(model, [given]).of("cross")
    count = model.config.decoder_attention_heads
    assert [np.flatnonzero(~np.isnan(row)).tolist() for row in found.entropy] == [list(range(1, count))] * 2


def test_a_record_of_another_model_is_refused() -> None:
    model, ids = build("qwen3"), inputs("qwen3")["input_ids"]
    other = build("qwen3")
    prune(other, {0: (0, 4), 1: (0, 4)})
    setattr(model.config, KEY, getattr(other.config, KEY))
    with pytest.raises(ManyheadsError, match=r"computes 6 heads, and the record of removed heads .* says 4"):
        head_statistics(model, [ids])
