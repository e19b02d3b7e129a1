"""ALiBi's slopes, T5's buckets and bias, sinusoids: by their papers, and by transformers."""

from __future__ import annotations

import math

import pytest
import torch

from manyheads.ops import bias, masks, sdpa, softmax, tiled
from support import rounding

f64 = torch.float64


def test_o97_slopes_of_12_heads() -> None:
    want = [2.0**-i for i in range(1, 9)] + [0.7071, 0.3536, 0.1768, 0.0884]
    assert bias.alibi_slopes(12).tolist() == pytest.approx(want, abs=5e-5)


def test_slopes_of_powers_of_two() -> None:
    assert bias.alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]
    assert bias.alibi_slopes(16).tolist() == pytest.approx([2.0 ** (-i / 2) for i in range(1, 17)])
    assert bias.alibi_slopes(1).tolist() == [2.0**-8]


@pytest.mark.parametrize("heads", [1, 6, 8, 12, 71])
def test_slopes_are_blooms(heads: int) -> None:
    pytest.importorskip("transformers")
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]  # slope times position 1
    # Theirs are powers, up to the 64th, of a base that is rounded to float32, and so 64 times as far off as that.
    assert torch.allclose(bias.alibi_slopes(heads).float(), theirs, rtol=64 * 2.0**-24, atol=0)


def test_alibi_is_minus_slope_times_distance() -> None:
    shown = bias.alibi_bias(bias.alibi_slopes(2), queries=2, keys=4, dtype=f64)
    assert shown[0, 0].tolist() == [[x / -16 for x in row] for row in ([2, 1, 0, 1], [3, 2, 1, 0])]
    assert shown[0, 1].tolist() == [[x / -256 for x in row] for row in ([2, 1, 0, 1], [3, 2, 1, 0])]
    each = bias.alibi_bias(bias.alibi_slopes(1), queries=1, keys=3, offset=torch.tensor([0, 2]), dtype=f64)
    assert each.flatten().tolist() == [x / -256 for x in (0, 1, 2, 2, 1, 0)]


@pytest.mark.parametrize("form", [softmax.attention, tiled.attention, sdpa.attention])
def test_alibi_as_a_formula_is_alibi_as_a_tensor(form: object) -> None:
    q, k, v = (torch.randn(2, 6, n, d, dtype=f64) for n, d in ((5, 4), (300, 4), (300, 3)))
    slopes = bias.alibi_slopes(6)
    asked = {"scale": 0.5, "visible": masks.causal()}
    whole = bias.alibi_bias(slopes, queries=5, keys=300, dtype=f64)
    assert torch.allclose(
        form(q, k, v, bias=bias.Alibi(slopes), **asked), form(q, k, v, bias=whole, **asked), atol=1e-13
    )


@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (6, 7), (32, 512)])
@pytest.mark.parametrize("two_sided", [True, False])
def test_buckets_are_t5s(buckets: int, most: int, two_sided: bool) -> None:
    pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    distance = torch.arange(-700, 701)
    theirs = T5Attention._relative_position_bucket(distance, two_sided, buckets, most)
    ours = bias.relative_buckets(distance, num_buckets=buckets, max_distance=most, two_sided=two_sided)
    assert torch.equal(ours, theirs)


def test_buckets_by_hand() -> None:
    """32 buckets, distances up to 128, one side: 0 to 15 exactly, then 16 for 16..18 (ln(19/16)/ln(8)·16 = 1.32)."""
    back = -torch.tensor([0, 1, 15, 16, 18, 19, 127, 128, 10_000])
    found = bias.relative_buckets(back, num_buckets=32, max_distance=128, two_sided=False)
    assert found.tolist() == [0, 1, 15, 16, 16, 17, 31, 31, 31]
    assert bias.relative_buckets(torch.tensor([5]), num_buckets=32, max_distance=128, two_sided=False).tolist() == [0]
    both = bias.relative_buckets(torch.tensor([-3, 3]), num_buckets=32, max_distance=128, two_sided=True)
    assert both.tolist() == [3, 19]


@pytest.mark.parametrize("decoder", [False, True])
def test_o99_t5_has_scale_1_and_a_shared_bias(decoder: bool) -> None:
    """A T5 layer with d_kv = 12, d_model = 20 through our operator, whole and by cached steps."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        d_model=20, d_kv=12, num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=10,
        is_decoder=decoder, attn_implementation="eager", dropout_rate=0.0,
    )  # fmt: skip
    theirs = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double().eval()
    x = torch.randn(2, 7, 20, dtype=f64)
    q, k, v = (part(x).view(2, 7, 3, 12).transpose(1, 2) for part in (theirs.q, theirs.k, theirs.v))
    seen = masks.causal() if decoder else masks.everything()
    table = theirs.relative_attention_bias.weight
    shared = {"max_distance": 10, "two_sided": not decoder}
    added = bias.relative_bias(table, queries=7, keys=7, **shared)
    got = theirs.o(softmax.attention(q, k, v, scale=1.0, visible=seen, bias=added).transpose(1, 2).flatten(2))
    blocked = torch.zeros(7, 7, dtype=f64).masked_fill(torch.ones(7, 7, dtype=torch.bool).triu(1), torch.finfo(f64).min)
    with rounding.Wide():  # T5's own softmax runs in float32
        want = theirs(x, mask=blocked[None, None] if decoder else None)[0]
    assert (got - want).abs().max() < 1e-12 * want.abs().max()
    if decoder:
        last = bias.relative_bias(table, queries=1, keys=7, **shared)
        step = softmax.attention(q[:, :, 6:], k, v, scale=1.0, visible=seen, bias=last)
        assert torch.allclose(theirs.o(step.transpose(1, 2).flatten(2)), got[:, 6:], atol=1e-13)


def test_the_table_of_a_relative_bias_learns() -> None:
    table = torch.randn(8, 3, dtype=f64, requires_grad=True)
    asked = {"queries": 3, "keys": 5, "max_distance": 10, "two_sided": True}
    assert torch.autograd.gradcheck(lambda table: bias.relative_bias(table, **asked), (table,))
    assert tuple(bias.relative_bias(table, **asked).shape) == (1, 3, 3, 5)
    each = bias.relative_bias(table, **{**asked, "offset": torch.tensor([2, 0])})
    assert torch.equal(each[0], bias.relative_bias(table, **asked)[0])


def test_sinusoids_of_the_paper() -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos of the same."""
    table = bias.sinusoids(torch.arange(51), 6)
    for place in (0, 1, 50):
        rates = [10000 ** (-2 * i / 6) for i in range(3)]
        want = [wave(place * rate) for rate in rates for wave in (math.sin, math.cos)]
        assert table[place].tolist() == pytest.approx(want, abs=1e-7)
    assert table.dtype == torch.float32
    assert bias.sinusoids(torch.arange(3, dtype=f64), 6).dtype == f64


def test_sinusoids_of_marian_and_whisper() -> None:
    pytest.importorskip("transformers")
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
    from transformers.models.whisper.modeling_whisper import sinusoids

    marian = MarianSinusoidalPositionalEmbedding(40, 8)
    marian.weight.data.copy_(marian.create_weight())
    assert torch.allclose(bias.sinusoids(torch.arange(40), 8, layout="halves"), marian.weight, atol=1e-6)
    ours = bias.sinusoids(torch.arange(40), 8, layout="halves", inclusive=True)
    assert torch.allclose(ours, sinusoids(40, 8), atol=1e-5)
