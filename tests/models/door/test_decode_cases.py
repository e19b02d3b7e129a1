"""Mistakes that others made, by the number of the report, tried on the decode kernel behind the door and on its caches."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

import manyheads
from manyheads.kernels import backend as kernel
from manyheads.layer.backends import select
from manyheads.layer.dispatch import attend
from manyheads.models.caches.layers import FullLayer, WindowLayer
from manyheads.models.door.call import read_call
from manyheads.ops import masks, softmax
from manyheads.ops.call import AttentionCall
from support import rounding
from support.tiny_transformers import build


def call(
    b: int = 1, h: int = 4, kv: int = 2, t: int = 1, s: int = 12, dtype: torch.dtype = torch.float32, **how: Any
) -> AttentionCall:
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(b, n, m, 64, generator=draw).to(dtype) for n, m in ((h, t), (kv, s), (kv, s)))
    return AttentionCall.checked(q, k, v, scale=0.125, **how)


def test_o12_queries_are_the_last_tokens() -> None:
    """L = 2, S = 5: rows see keys 0 to 3 and 0 to 4. Each key's value is its own number."""
    asked = call(t=2, s=5, visible=masks.causal())
    asked.k.zero_()
    asked.v.copy_(torch.arange(5.0).view(1, 1, 5, 1))
    assert torch.allclose(kernel.run(asked)[..., 0], torch.tensor([1.5, 2.0]))


def test_o13_a_token_does_not_change_what_came_before() -> None:
    asked = call(t=4, s=12, visible=masks.causal())
    before = kernel.run(asked)
    asked.k[:, :, 10], asked.v[:, :, 10] = 9.0, 9.0  # the token of the third query
    after = kernel.run(asked)
    assert torch.equal(after[:, :, :2], before[:, :, :2])
    assert not torch.allclose(after[:, :, 2:], before[:, :, 2:])


@pytest.mark.parametrize("kv", [1, 2, 4, 8])
def test_o21_query_head_h_reads_kv_head_h_over_group(kv: int) -> None:
    asked = call(h=8, kv=kv, t=3)
    asked.v.copy_(torch.arange(float(kv)).view(1, kv, 1, 1))
    expected = torch.arange(8) // (8 // kv)
    assert torch.allclose(kernel.run(asked)[0, :, :, 0], expected.float()[:, None].expand(8, 3))


def test_o22_tokens_and_heads_are_not_mistaken_for_one_another() -> None:
    """The same numbers with tokens before heads in memory and the other way round."""
    asked = call(b=2, h=4, kv=2, t=2, s=9)
    turned = call(b=2, h=4, kv=2, t=2, s=9)
    for name in "qkv":
        object.__setattr__(turned, name, getattr(asked, name).transpose(1, 2).contiguous().transpose(1, 2))
    assert torch.equal(kernel.run(asked), kernel.run(turned))


def test_o47_two_masks_of_the_least_number() -> None:
    """fp16: causal plus padding as floats is -inf where both forbid; such a row is neither NaN nor an average."""
    asked = call(b=2, t=2, s=6, dtype=torch.float16)
    least = torch.finfo(torch.float16).min
    causal = torch.full((2, 6), least, dtype=torch.float16).triu(5)
    padding = torch.where(torch.arange(6) < torch.tensor([[0], [6]]), least, 0.0).to(torch.float16)
    both = causal + padding[:, None, None]
    assert both.isinf().any()
    told = read_call(nn.Identity(), asked.q, asked.k, asked.v, both, {"scaling": 0.125})
    out = kernel.run(told)
    assert torch.isfinite(out).all()
    assert (out[1] == 0).all()
    exact = rounding.attention(
        asked.q[:1], asked.k[:1], asked.v[:1], scale=0.125, visible=masks.causal(), dtype=torch.float16
    )
    assert exact.holds(out[:1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_o48_sums_are_wide(dtype: torch.dtype) -> None:
    """512 keys: rows of probabilities add up to one, and the error is that of rounding the answer once."""
    asked = call(s=512, dtype=dtype)
    expected = softmax.attention(asked.q.double(), asked.k.double(), asked.v.double(), scale=0.125)
    error = (kernel.run(asked).double() - expected).abs().max()
    assert float(error) <= float(expected.abs().max()) * {torch.bfloat16: 2**-8, torch.float16: 2**-11}[dtype]
    asked.v.fill_(1.0)
    assert torch.equal(kernel.run(asked), torch.ones_like(asked.q))


@pytest.mark.parametrize("window", [1, 3, 7, 100])
def test_o55_o56_o57_a_window_has_w_keys_itself_included(window: int) -> None:
    asked = call(t=6, s=20, visible=masks.window(window))
    asked.k.zero_()
    for key in range(20):
        asked.v.zero_()
        asked.v[:, :, key] = 1.0
        seen = kernel.run(asked)[0, 0, :, 0] > 0
        assert seen.tolist() == [query - window < key <= query for query in range(14, 20)]


def test_o60_no_sequences_no_queries_no_keys() -> None:
    for b, t, s in ((0, 1, 5), (1, 0, 5), (1, 1, 0)):
        asked = call(b=b, t=t, s=s)
        assert "nothing to read" in kernel.supports(asked).reason or t == 0
        assert attend(asked).shape == (b, 4, t, 64)


def test_o63_one_of_three_lies_otherwise() -> None:
    plain = call(t=2, s=30)
    expected = kernel.run(plain)
    for name in "qkv":
        asked = call(t=2, s=30)
        object.__setattr__(asked, name, getattr(asked, name).mT.contiguous().mT)
        if name == "q":
            assert torch.equal(kernel.run(asked), expected)
        else:
            assert "side by side" in select(asked).reason or "keys" in select(asked).reason
            assert rounding.attention(plain.q, plain.k, plain.v, **plain.options).holds(attend(asked))


def test_o75_o77_a_windowed_layer_stops_growing() -> None:
    """36 layers of which 18 are windowed: 73,728 bytes at one token; at 300 tokens the windowed hold 127 each."""
    cache = manyheads.cache(
        build(
            "gpt_oss",
            num_hidden_layers=36,
            num_key_value_heads=8,
            num_attention_heads=8,
            head_dim=10,
            sliding_window=128,
            layer_types=None,
        )
    )
    for layer in cache.layers:
        layer.update(*(torch.zeros(1, 8, 1, 64, dtype=torch.bfloat16),) * 2)
    assert held(cache) == 73_728
    for layer in cache.layers:
        layer.update(*(torch.zeros(1, 8, 299, 64, dtype=torch.bfloat16),) * 2)
    assert held(cache) == 18 * (300 + 127) * 2 * 8 * 64 * 2


def held(cache: Any) -> int:
    return sum(x.numel() * x.element_size() for layer in cache.layers for x in (layer.keys, layer.values))


def test_o78_int8_takes_a_byte_an_element_and_a_scale_a_head() -> None:
    layer = FullLayer(stored=torch.int8)
    layer.update(*(torch.zeros(1, 8, 10, 64, dtype=torch.bfloat16),) * 2)
    keys = layer.keys
    assert keys.numbers.numel() * keys.numbers.element_size() == 10 * 8 * 64
    assert keys.scales.numel() * keys.scales.element_size() == 10 * 8 * 2


def test_o79_a_latent_layer_keeps_576_values() -> None:
    layer = FullLayer()
    layer.update(torch.zeros(1, 1, 1, 512, dtype=torch.bfloat16), torch.zeros(1, 1, 1, 64, dtype=torch.bfloat16))
    assert 61 * (layer.keys.numel() + layer.values.numel()) * 2 == 70_272


def test_o80_who_borrows_and_who_keeps_a_state_keep_no_tokens() -> None:
    kinds = [type(layer).__name__ for layer in manyheads.cache(build("qwen3_next")).layers]
    assert kinds.count("FullLayer") == 1
    assert set(kinds) == {"FullLayer", "LinearAttentionLayer"}
    assert WindowLayer(sliding_window=4).keys is None
