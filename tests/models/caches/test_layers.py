"""Cache layers of ours against transformers' own, call by call; and what in-place growth must not break."""

from __future__ import annotations

import copy
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from manyheads.errors import BackendError
from manyheads.models.caches.hybrid import HybridLayer
from manyheads.models.caches.layers import FullLayer, WindowLayer
from manyheads.ops.deferred import StoredTensor, materialized

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.integers(1, 9)),
        st.tuples(st.just("crop"), st.integers(0, 3)),
        st.tuples(st.just("reorder"), st.lists(st.integers(0, 1), min_size=2, max_size=2)),
        st.tuples(st.just("repeat"), st.integers(1, 2)),
        st.tuples(st.just("select"), st.lists(st.integers(0, 1), min_size=1, max_size=3)),
        st.tuples(st.just("reset"), st.just(0)),
    ),
    min_size=1,
    max_size=14,
)


def draw(batch: int, tokens: int, seed: int, *, heads: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, heads, tokens, width, generator=generator) for width in (6, 4))  # type: ignore[return-value]


def play(layers: list[Any], steps: Any) -> None:
    """The same calls on both; everything they answer is the same."""
    batch = 2
    for number, (what, value) in enumerate(steps):
        if what == "update":
            new = draw(batch, value, number)
            for first, second in zip(*(layer.update(*new) for layer in layers), strict=True):
                assert torch.equal(first, second)
        elif what == "crop" and layers[0].is_initialized:
            crop(layers, value)
        elif what == "reset":
            batch = 2
            for layer in layers:
                layer.reset()
        elif what != "crop" and layers[0].get_seq_length():
            rearrange(layers, what, value, batch)
            batch = layers[0].keys.shape[0]
        assert layers[0].get_seq_length() == layers[1].get_seq_length()
        assert layers[0].get_max_length() == layers[1].get_max_length()
        for queries in (1, 4):
            assert layers[0].get_mask_sizes(queries) == layers[1].get_mask_sizes(queries)


def crop(layers: list[Any], value: int) -> None:
    first = layers[0]
    held, seen, window = first.keys.shape[-2], first.get_seq_length(), getattr(first, "sliding_window", 10**6)
    tokens = min(value, held)
    needed = min(seen - tokens, window - 1)
    full = not getattr(first, "record_past", True) and seen >= window
    if held - tokens >= needed and not full:  # theirs would go on with keys missing, or refuses
        for layer in layers:
            layer.crop(-tokens)


def rearrange(layers: list[Any], what: str, value: Any, batch: int) -> None:
    rows = torch.tensor(value if isinstance(value, list) else 0) % batch
    for layer in layers:
        if what == "reorder" and rows.shape[0] == batch:
            layer.reorder_cache(rows)
        elif what == "repeat":
            layer.batch_repeat_interleave(value)
        elif what == "select":
            layer.batch_select_indices(rows)


@settings(max_examples=60)
@given(STEPS)
def test_a_full_layer_is_transformers_own(steps: Any) -> None:
    with torch.no_grad():
        play([DynamicLayer(), FullLayer()], steps)


@settings(max_examples=80)
@given(STEPS, st.integers(2, 9), st.booleans())
def test_a_window_is_transformers_own(steps: Any, window: int, record: bool) -> None:
    layers = [DynamicSlidingWindowLayer(sliding_window=window), WindowLayer(sliding_window=window)]
    if record:
        for layer in layers:
            layer.activate_past_recording()
    with torch.no_grad():
        play(layers, steps)


def test_a_window_does_not_go_on_with_keys_missing() -> None:
    layer = WindowLayer(sliding_window=4)
    layer.update(*draw(1, 9, 0))
    with pytest.raises(
        BackendError, match="holds the last 3 of 9 tokens: without the last 2 the next query would see 3"
    ):
        layer.crop(-2)
    layer.activate_past_recording()
    layer.update(*draw(1, 3, 1))
    layer.crop(-2)
    assert layer.get_seq_length() == 10
    assert layer.get_mask_sizes(1) == (4, 7)


@pytest.mark.parametrize("stored", [None, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("make", [FullLayer, lambda **o: WindowLayer(sliding_window=4, **o)], ids=["full", "window"])
def test_no_more_is_taken_back_than_there_is(make: Any, stored: torch.dtype | None) -> None:
    layer = make(stored=stored)
    layer.crop(-2)  # nothing held, as where keys are shared: nothing to take
    layer.update(*draw(1, 3, 0))
    for more in (4, 5, 100):
        with pytest.raises(BackendError, match=rf"asked to take back {more} tokens of 3; valid: -3 to 0"):
            layer.crop(-more)
    assert (layer.get_seq_length(), layer.get_mask_sizes(1)) == (3, (4, 0))
    layer.crop(-3)
    assert (layer.get_seq_length(), layer.get_mask_sizes(1)) == (0, (1, 0))
    keys, _ = layer.update(*draw(1, 2, 1))
    assert keys.shape[2] == 2


def test_a_running_state_is_not_taken_back() -> None:
    """transformers' own takes back what the convolution remembers and leaves the sum, which then holds tokens that are gone."""
    layer = HybridLayer()
    layer.update(*draw(1, 3, 0))
    layer.update_conv_state(torch.randn(1, 4, 3))
    with pytest.raises(
        BackendError, match="a convolution holds its last inputs alone, which cannot be taken back by 1"
    ):
        layer.crop(-1)
    layer.update_recurrent_state(torch.randn(1, 2, 4, 4))
    layer.activate_past_recording()
    with pytest.raises(
        BackendError, match="one running state, which cannot be taken back by 2 tokens; valid: 0, or a copy"
    ):
        layer.crop(-2)
    assert layer.get_seq_length() == 3


def test_states_are_repeated_and_selected_with_the_keys() -> None:
    layer = HybridLayer()
    keys, _ = layer.update(*draw(2, 3, 0))
    conv = layer.update_conv_state(torch.randn(2, 4, 3)).clone()
    layer.batch_repeat_interleave(2)
    assert torch.equal(layer.conv_states[0], conv[[0, 0, 1, 1]])
    layer.batch_select_indices(torch.tensor([False, True, True, False]))
    assert torch.equal(layer.conv_states[0], conv)
    assert torch.equal(layer.keys, keys)


def test_a_window_of_one_token_keeps_nothing() -> None:
    layer = WindowLayer(sliding_window=1)
    for step in range(3):
        new = draw(1, 2, step)
        assert torch.equal(layer.update(*new)[0], new[0])
        assert layer.get_mask_sizes(1) == (1, 2 * step + 2)


def test_appending_copies_what_is_held_a_few_times_in_all() -> None:
    layer = FullLayer()
    places = set()
    for step in range(1000):
        keys, _ = layer.update(*draw(1, 1, step))
        places.add(keys.data_ptr())
    assert len(places) <= 12  # 64, then half as much again each time


def test_a_window_holds_no_more_than_half_as_much_again() -> None:
    layer = WindowLayer(sliding_window=256)
    layer.update(*draw(1, 3000, 0))
    for step in range(700):
        layer.update(*draw(1, 1, step))
    assert layer.keys.untyped_storage().nbytes() <= 2 * 6 * 4 * (255 + 1 + 127 + 1)


def test_views_of_earlier_steps_stay_as_they_were() -> None:
    for layer in (FullLayer(), WindowLayer(sliding_window=5)):
        seen = []
        for step in range(200):
            keys, values = layer.update(*draw(1, 1, step))
            seen.append((keys, keys.clone(), values, values.clone()))
        for keys, then, values, values_then in seen:
            assert torch.equal(keys, then)
            assert torch.equal(values, values_then)


def test_gradients_flow_through_what_is_kept() -> None:
    layer = FullLayer()
    first, second = (tuple(x.requires_grad_() for x in draw(1, 3, seed)) for seed in (0, 1))
    layer.update(*first)
    keys, values = layer.update(*second)
    (keys.square().sum() + values.square().sum()).backward()
    for x in (*first, *second):
        assert torch.equal(x.grad, 2 * x.detach())


def test_frozen_keys_that_autograd_has_saved_are_not_written_over() -> None:
    """Queries learn, keys do not: what the product saved must be the same in the backward pass, crop or no crop."""
    layer, query = FullLayer(), torch.ones(1, 2, 1, 6, requires_grad=True)
    keys, _ = layer.update(*draw(1, 4, 0))
    kept = keys.clone()
    product = (query @ keys.mT).sum()
    layer.crop(-2)
    layer.update(*draw(1, 5, 1))
    product.backward()
    assert torch.allclose(query.grad, kept.sum(2, keepdim=True))


def test_begun_without_gradients_and_gone_on_with_them() -> None:
    layer = FullLayer()
    with torch.inference_mode():
        layer.update(*draw(1, 4, 0))
    keys, _ = layer.update(*draw(1, 1, 1))
    assert torch.equal(keys, torch.cat([draw(1, 4, 0)[0], draw(1, 1, 1)[0]], 2))


@pytest.mark.parametrize("change", [lambda k, v: (k[:, :1], v[:, :1]), lambda k, v: (k.double(), v.double())])
def test_tokens_that_do_not_go_with_the_others_are_refused(change: Any) -> None:
    layer = FullLayer()
    layer.update(*draw(2, 4, 0))
    with pytest.raises(BackendError, match="the cache holds"):
        layer.update(*change(*draw(2, 1, 1)))
    with pytest.raises(BackendError, match="crop takes 0 or less"):
        layer.crop(1)


def test_a_copy_goes_its_own_way() -> None:
    layer = FullLayer()
    layer.update(*draw(1, 4, 0))
    other = copy.deepcopy(layer)
    layer.update(*draw(1, 1, 1))
    other.update(*draw(1, 1, 2))
    assert torch.equal(layer.keys[:, :, 4:], draw(1, 1, 1)[0])
    assert torch.equal(other.keys[:, :, 4:], draw(1, 1, 2)[0])


def test_keys_and_values_can_be_set() -> None:
    """As transformers does to offload, and manyheads.models.resident_bytes to watch gradients."""
    for heads in (2, 1):  # one head: a latent and its rotary key, side by side
        layer = FullLayer()
        first = draw(1, 4, 0, heads=heads)
        layer.update(*first)
        layer.keys = layer.keys * 2
        layer.values = layer.values * 3
        new = draw(1, 1, 1, heads=heads)
        keys, values = layer.update(*new)
        assert torch.equal(keys, torch.cat([2 * first[0], new[0]], 2))
        assert torch.equal(values, torch.cat([3 * first[1], new[1]], 2))


def test_a_latent_and_its_rotary_key_lie_side_by_side() -> None:
    layer = FullLayer()
    latent, rotary = layer.update(*draw(1, 4, 0, heads=1))
    assert rotary.data_ptr() == latent.data_ptr() + 6 * 4
    assert latent.stride(2) == rotary.stride(2) == 10


@pytest.mark.parametrize(("stored", "bound"), [(torch.bfloat16, 2**-8), (torch.float16, 2**-11), (torch.int8, 1 / 250)])
def test_other_formats_come_as_they_lie_and_are_dequantized_on_demand(stored: torch.dtype, bound: float) -> None:
    layer = FullLayer(stored=stored)
    new = draw(2, 40, 0)
    read = layer.update(*new)
    for x, exact in zip(read, new, strict=True):
        assert isinstance(x, StoredTensor)
        assert (x.shape, x.dtype, x.numbers.dtype) == (exact.shape, torch.float32, stored)
        assert float((materialized(x) - exact).abs().max()) <= bound * float(exact.abs().max())


def test_an_operation_of_the_model_gets_dequantized_values_and_says_so() -> None:
    layer = FullLayer(stored=torch.int8)
    keys, _ = layer.update(*draw(1, 4, 0))
    with pytest.warns(UserWarning, match="dequantized on the spot"):
        product = torch.hypot(keys, torch.zeros(()))
    assert torch.equal(product, materialized(keys).abs())


def test_zero_tokens_of_a_batch_of_zero() -> None:
    layer = FullLayer()
    keys, _ = layer.update(*draw(0, 3, 0))
    assert keys.shape == (0, 2, 3, 6)
    assert layer.get_mask_sizes(1) == (4, 0)
