"""Public bug reports that belong to softmax attention itself, each by its number, through every form."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from manyheads.errors import SpecError
from manyheads.ops import masks, sdpa, softmax, tiled
from support import rounding

Form = Callable[..., Tensor]
FORMS: dict[str, Form] = {"softmax": softmax.attention, "tiled": tiled.attention, "sdpa": sdpa.attention}
each_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
f64 = torch.float64


def qkv(b: int, h: int, k: int, t: int, s: int, q: int = 4, v: int = 3, dtype: torch.dtype = f64) -> tuple[Tensor, ...]:
    return (
        torch.randn(b, h, t, q, dtype=dtype),
        torch.randn(b, k, s, q, dtype=dtype),
        torch.randn(b, k, s, v, dtype=dtype),
    )


# A. Rows that see nothing


@each_form
def test_o01_a_dead_head_poisons_nothing(form: Form) -> None:
    q, k, v = qkv(1, 3, 3, 5, 5)
    seen = torch.ones(3, 5, 5, dtype=torch.bool)
    seen[2] = False
    out, weights = softmax.attention(q, k, v, scale=0.5, visible=seen, return_weights=True)
    got = form(q, k, v, scale=0.5, visible=seen)
    assert torch.allclose(got, out, atol=1e-14)
    assert got.isfinite().all()
    assert not got[:, 2].any()
    assert not weights[:, 2].any()
    assert torch.allclose(weights[:, :2].sum(-1), torch.ones(1, 2, 5, dtype=f64))


@each_form
def test_o02_causal_and_left_padding_have_finite_gradients(form: Form) -> None:
    leaves = [x.requires_grad_() for x in qkv(2, 2, 2, 3, 3)]
    keep = torch.tensor([[False, True, True], [True, True, True]])
    out = form(*leaves, scale=0.5, visible=masks.causal() & masks.padding(keep))
    out[:, :, 1:].sum().backward()
    assert all(x.grad.isfinite().all() for x in leaves)
    assert not out[0, :, 0].any()
    assert not leaves[0].grad[0, :, 0].any()
    assert not leaves[1].grad[0, :, 0].any()


def test_o03_padding_takes_the_key_column_and_leaves_the_query_row() -> None:
    keep = torch.tensor([[True, True, True, True, False]])
    seen = masks.materialise(masks.causal() & masks.padding(keep), batch=1, heads=1, queries=5, keys=5)[0, 0]
    assert seen.int().tolist() == [
        [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 0],
    ]  # fmt: skip


@each_form
def test_o04_a_sequence_of_length_0_changes_no_other(form: Form) -> None:
    q, k, v = qkv(3, 2, 2, 4, 4, dtype=torch.float32)
    valid = torch.tensor([4, 0, 2])
    out = form(q, k, v, scale=0.5, visible=masks.lengths(valid))
    assert not out[1].any()
    for one in (0, 2):
        alone = form(q[one, None], k[one, None], v[one, None], scale=0.5, visible=masks.lengths(valid[one, None]))
        assert torch.equal(out[one], alone[0])


# B. Polarity


@each_form
def test_o05_true_means_may_attend(form: Form) -> None:
    q, k, v = qkv(1, 2, 2, 2, 2)
    seen = torch.tensor([[True, False], [True, True]])
    out = form(q, k, v, scale=0.5, visible=seen)
    assert torch.allclose(out[:, :, 0], v[:, :, 0])  # the first query sees the first key alone
    assert torch.allclose(out, scaled_dot_product_attention(q, k, v, seen, scale=0.5))


@each_form
def test_o06_one_padded_token(form: Form) -> None:
    q, k, v = qkv(1, 2, 2, 3, 3)
    out = form(q, k, v, scale=0.5, visible=masks.padding(torch.tensor([[True, True, False]])))
    assert torch.allclose(out, form(q, k[:, :, :2], v[:, :, :2], scale=0.5))


def test_o07_every_form_agrees_on_a_mask_half_true() -> None:
    q, k, v = qkv(2, 4, 2, 5, 6)
    seen = torch.rand(2, 4, 5, 6) < 0.5
    want = softmax.attention(q, k, v, scale=0.5, visible=seen)
    assert all(torch.allclose(form(q, k, v, scale=0.5, visible=seen), want, atol=1e-14) for form in FORMS.values())
    assert not torch.allclose(softmax.attention(q, k, v, scale=0.5, visible=~seen), want)


# C. Mask dtype and shape


@each_form
def test_o08_a_float_padding_mask_is_the_boolean_one(form: Form) -> None:
    q, k, v = qkv(1, 2, 2, 3, 3)
    added = torch.tensor([0.0, 0.0, -torch.inf], dtype=f64)
    want = form(q, k, v, scale=0.5, visible=masks.padding(torch.tensor([[True, True, False]])))
    assert torch.allclose(form(q, k, v, scale=0.5, bias=added), want, atol=1e-14)


@each_form
def test_o10_a_mask_a_sequence_carries_its_head_axis(form: Form) -> None:
    q, k, v = qkv(2, 4, 2, 3, 3)
    seen = torch.rand(2, 1, 3, 3) < 0.6
    out = form(q, k, v, scale=0.5, visible=seen)
    for one in range(2):
        alone = form(q[one, None], k[one, None], v[one, None], scale=0.5, visible=seen[one])
        assert torch.allclose(out[one], alone[0], atol=1e-14)
    with pytest.raises(SpecError, match="does not fit"):
        form(q, k, v, scale=0.5, visible=seen[:, 0])


# D. Causal alignment with a cache


@each_form
def test_o12_a_cached_step_is_the_last_row_of_the_whole(form: Form) -> None:
    seen = masks.materialise(masks.causal(), batch=1, heads=1, queries=2, keys=5)[0, 0]
    assert seen.int().tolist() == [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]
    q, k, v = qkv(2, 4, 2, 5, 5)
    whole = form(q, k, v, scale=0.5, visible=masks.causal())
    for new in (1, 2, 3):
        step = form(q[:, :, -new:], k, v, scale=0.5, visible=masks.causal())
        assert torch.allclose(step, whole[:, :, -new:], atol=1e-14)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
@each_form
def test_o13_no_path_drops_the_causal_mask(form: Form, dropout: float) -> None:
    q, k, v = qkv(2, 4, 2, 6, 6)
    later_k, later_v = k.clone(), v.clone()
    later_k[:, :, 4:] += 1.0
    later_v[:, :, 4:] += 1.0
    found = []
    for keys, values in ((k, v), (later_k, later_v)):
        torch.manual_seed(3)
        found.append(form(q, keys, values, scale=0.5, visible=masks.causal(), dropout=dropout))
    assert torch.equal(found[0][:, :, :4], found[1][:, :, :4])
    assert not torch.equal(found[0], found[1])
    _, weights = softmax.attention(q, k, v, scale=0.5, visible=masks.causal(), dropout=dropout, return_weights=True)
    assert not weights.triu(1).any()


def test_o19_weights_come_from_the_function_that_torch_computes() -> None:
    for seen, scale in ((None, 0.5), (torch.rand(2, 4) < 0.7, 0.3), (torch.ones(2, 4, dtype=torch.bool), 8**-0.5)):
        q, k, v = (torch.randn(1, 2, n, 8) for n in (2, 4, 4))
        out, weights = softmax.attention(q, k, v, scale=scale, visible=seen, return_weights=True)
        exact = rounding.attention(q, k, v, scale=scale, visible=seen)
        assert exact.holds(out)
        assert exact.holds(weights @ v)
        assert exact.holds(scaled_dot_product_attention(q, k, v, seen, scale=scale))


# F. Grouped heads


@each_form
def test_o21_query_head_h_reads_key_value_head_h_over_g(form: Form) -> None:
    q, k, _ = qkv(1, 6, 2, 3, 4)
    v = torch.tensor([10.0, 20.0], dtype=f64).view(1, 2, 1, 1).expand(1, 2, 4, 1)
    assert form(q, k, v, scale=0.5)[0, :, 0, 0].round(decimals=9).tolist() == [10, 10, 10, 20, 20, 20]


@each_form
def test_o22_layouts_hold_the_same_numbers(form: Form) -> None:
    """(batch, tokens, heads, dim) turned into ours by a view; tokens stay tokens."""
    q, k, v = (torch.randn(1, 2, heads, 3, dtype=f64) for heads in (4, 2, 2))
    out = form(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), scale=0.5)
    assert out.shape == (1, 4, 2, 3)
    for head in range(4):
        mixed = torch.softmax(0.5 * q[0, :, head] @ k[0, :, head // 2].T, -1) @ v[0, :, head // 2]
        assert torch.allclose(out[0, head], mixed, atol=1e-14)


# L. Precision


@each_form
def test_o47_two_masks_of_the_lowest_number_do_not_overflow(form: Form) -> None:
    q, k, v = qkv(2, 2, 2, 4, 4, dtype=torch.float16)
    keep = torch.tensor([[False, False, True, True], [True, True, True, True]])
    out = form(q, k, v, scale=0.5, visible=masks.causal() & masks.padding(keep))
    assert out.isfinite().all()
    lowest = torch.finfo(torch.float16).min
    added = torch.zeros(4, 4, dtype=torch.float16).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), lowest)
    added = added + torch.zeros(2, 1, 1, 4, dtype=torch.float16).masked_fill(~keep[:, None, None], lowest)
    assert added.isneginf().any()
    assert form(q, k, v, scale=0.5, bias=added).isfinite().all()


@each_form
def test_o48_softmax_is_wider_than_bf16(form: Form) -> None:
    q, k, _ = qkv(1, 2, 2, 4, 512, q=16, dtype=torch.bfloat16)
    v = torch.ones(1, 2, 512, 2, dtype=torch.bfloat16)
    assert (form(q, k, v, scale=0.25).double() - 1).abs().max() < 1e-3
    v = torch.randn(1, 2, 512, 5).bfloat16()
    want, exact = softmax.attention(q.double(), k.double(), v.double(), scale=0.25, return_weights=True)
    assert (form(q, k, v, scale=0.25).double() - want).abs().max() < 1e-2
    _, weights = softmax.attention(q, k, v, scale=0.25, return_weights=True)
    assert (weights.double() - exact).abs().max() < 1e-2
    assert (weights.double().sum(-1) - 1).abs().max() < 1e-3


# M. Softcap, scale, sinks


def test_o51_softcap_bends_120_to_49_18() -> None:
    q, k = torch.tensor([[[[120.0]]]], dtype=f64), torch.ones(1, 1, 1, 1, dtype=f64)
    assert softmax.scores(q, k, scale=1.0, stage="capped", softcap=50.0).item() == pytest.approx(49.18, abs=0.005)
    assert softmax.scores(q, k, scale=1.0, stage="scaled", softcap=50.0).item() == 120.0


@each_form
def test_o51_every_form_honours_the_cap(form: Form) -> None:
    q, k, v = qkv(1, 2, 2, 4, 4)
    capped = 50 * torch.tanh(40 * q @ k.mT / 50)
    assert (40 * q @ k.mT).abs().max() > 100
    assert torch.allclose(form(q, k, v, scale=40.0, softcap=50.0), torch.softmax(capped, -1) @ v, atol=1e-13)


@each_form
def test_o52_the_scale_is_what_is_said(form: Form) -> None:
    q, k, v = qkv(1, 2, 2, 4, 4, q=128)
    want = torch.softmax(q @ k.mT / 12, -1) @ v  # query_pre_attn_scalar 144, head_dim 128
    assert torch.allclose(form(q, k, v, scale=144**-0.5), want, atol=1e-13)


@each_form
def test_o53_a_sink_is_a_logit_whose_column_is_dropped(form: Form) -> None:
    q, k = torch.ones(1, 1, 1, 1, dtype=f64), torch.tensor([1.0, 2.0, 3.0], dtype=f64).view(1, 1, 3, 1)
    shown = form(q, k, torch.eye(3, dtype=f64).view(1, 1, 3, 3), scale=1.0, sinks=torch.tensor([0.5], dtype=f64))
    assert shown.flatten().tolist() == pytest.approx([0.0854, 0.2321, 0.6308], abs=5e-5)
    assert shown.sum().item() == pytest.approx(0.948, abs=5e-4)


@each_form
@pytest.mark.parametrize("seen", [masks.causal(), masks.window(3)], ids=["full", "window"])
def test_o54_sinks_in_prefill_and_decode_and_windows(form: Form, seen: masks.Visible) -> None:
    q, k, v = qkv(2, 4, 2, 7, 7)
    sinks = torch.randn(4, dtype=f64)
    whole = form(q, k, v, scale=0.5, visible=seen, sinks=sinks)
    logits = softmax.scores(q, k, scale=0.5, visible=seen)
    shares = torch.softmax(torch.cat((logits, sinks.view(1, 4, 1, 1).expand(2, 4, 7, 1)), -1), -1)[..., :-1]
    assert torch.allclose(whole, shares @ v.repeat_interleave(2, 1), atol=1e-13)
    for t in range(7):
        step = form(q[:, :, t : t + 1], k[:, :, : t + 1], v[:, :, : t + 1], scale=0.5, visible=seen, sinks=sinks)
        assert torch.allclose(step, whole[:, :, t : t + 1], atol=1e-14)


# N. Sliding window


def test_o55_a_window_of_3_shows_3_keys() -> None:
    seen = masks.materialise(masks.window(3), batch=1, heads=1, queries=6, keys=6)
    assert seen[0, 0].sum(-1).tolist() == [1, 2, 3, 3, 3, 3]


def test_o56_every_form_keeps_w_keys() -> None:
    q, k = (torch.zeros(1, 1, n, 2) for n in (1, 4096))
    v = torch.ones(1, 1, 4096, 1)
    v[0, 0, : 4096 - 2048] = 1e6  # one key too many would show
    for form in FORMS.values():
        assert form(q, k, v, scale=1.0, visible=masks.window(2048)).item() == pytest.approx(1.0, abs=1e-5)
        v[0, 0, 4096 - 2048] = 2049.0
        assert form(q, k, v, scale=1.0, visible=masks.window(2048)).item() == pytest.approx(2.0, abs=1e-5)
        v[0, 0, 4096 - 2048] = 1.0


@each_form
def test_o57_a_token_out_of_the_window_moves_nothing(form: Form) -> None:
    q, k, v = qkv(1, 2, 2, 9, 9)
    out = form(q, k, v, scale=0.5, visible=masks.window(4))
    k[:, :, 8 - 4] += 1.0
    v[:, :, 8 - 4] += 1.0
    moved = form(q, k, v, scale=0.5, visible=masks.window(4))
    assert torch.equal(moved[:, :, 8], out[:, :, 8])
    assert not torch.equal(moved[:, :, 7], out[:, :, 7])


@each_form
def test_o58_a_prompt_longer_than_the_ring(form: Form) -> None:
    """A ring of 4 slots after 7 tokens and one new query: slot j holds the newest position that is j modulo 4."""
    q, k, v = qkv(1, 2, 2, 7, 7)
    whole = form(q, k, v, scale=0.5, visible=masks.window(4))
    at = torch.tensor([4, 5, 6, 3])
    ring = form(q[:, :, 6:], k[:, :, at], v[:, :, at], scale=0.5, visible=masks.placed(masks.window(4), at), offset=6)
    assert torch.allclose(ring, whole[:, :, 6:], atol=1e-14)


@given(
    cuts=st.lists(st.integers(1, 7), max_size=4, unique=True), keys=st.integers(1, 9), name=st.sampled_from([*FORMS])
)
def test_o59_any_chunking_of_the_prefill_is_the_same(cuts: list[int], keys: int, name: str) -> None:
    q, k, v = qkv(1, 4, 2, 8, 8)
    whole = softmax.attention(q, k, v, scale=0.5, visible=masks.window(keys))
    ends = [*sorted(cuts), 8]
    parts = [
        FORMS[name](q[:, :, a:b], k[:, :, :b], v[:, :, :b], scale=0.5, visible=masks.window(keys))
        for a, b in zip([0, *ends], ends, strict=False)
    ]
    assert torch.allclose(torch.cat(parts, 2), whole, atol=1e-14)


# O. Degenerate sizes, strides


@each_form
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes", [(0, 2, 3, 3), (2, 2, 0, 3), (2, 2, 3, 0), (0, 2, 0, 0)], ids=["batch", "queries", "keys", "all"]
)
def test_o60_nothing_forward_and_backward(form: Form, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    b, h, t, s = sizes
    leaves = [x.requires_grad_() for x in qkv(b, h, 1, t, s, q=8, v=5, dtype=dtype)]
    bias = torch.randn(t, s, dtype=dtype, requires_grad=True)
    out = form(*leaves, scale=0.5, visible=masks.causal(), bias=bias)
    assert (tuple(out.shape), out.dtype) == ((b, h, t, 5), dtype)
    assert not out.any()
    grads = torch.autograd.grad(out.sum(), [*leaves, bias])
    assert [g.shape for g in grads] == [x.shape for x in (*leaves, bias)]
    assert not any(g.any() for g in grads)


def _strided(x: Tensor, pattern: int) -> Tensor:
    """The numbers of x (b, h, t, d) under another stride pattern."""
    if pattern < 4:
        order = [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (3, 2, 1, 0)][pattern]
        return x.permute(order).contiguous().permute([order.index(axis) for axis in range(4)])
    if pattern == 4:  # every other element of a larger tensor
        large = x.new_full((*x.shape[:3], 2 * x.shape[3]), torch.nan)
        large[..., ::2] = x
        return large[..., ::2]
    large = x.new_full((x.shape[0], x.shape[1], x.shape[2] + 3, x.shape[3] + 1), torch.nan)  # a corner
    large[:, :, 2:-1, 1:] = x
    return large[:, :, 2:-1, 1:]


@each_form
@pytest.mark.parametrize("pattern", range(6))
def test_o62_strides_do_not_matter(form: Form, pattern: int) -> None:
    leaves = qkv(2, 4, 2, 9, 11, q=8, v=5, dtype=torch.float32)
    laid = [_strided(x, pattern).requires_grad_() for x in leaves]
    plain = [x.requires_grad_() for x in leaves]
    assert all(torch.equal(a, b) for a, b in zip(laid, plain, strict=True))

    def outcome(of: Form, tensors: list[Tensor]) -> Tensor:
        with torch.enable_grad():
            out = of(*tensors, scale=0.5, visible=masks.causal())
            grads = torch.autograd.grad((out * out.detach().cos()).sum(), tensors)
        return torch.cat([x.detach().flatten() for x in (out, *grads)])

    exact = rounding.evaluated(
        lambda: outcome(softmax.attention, [x.detach().double().requires_grad_() for x in plain])
    )
    assert exact.holds(outcome(form, plain))
    assert exact.holds(outcome(form, laid))


@each_form
@pytest.mark.parametrize("odd", range(3))
@pytest.mark.parametrize("pattern", range(1, 6))
def test_o63_one_of_the_three_is_not_contiguous(form: Form, odd: int, pattern: int) -> None:
    leaves = list(qkv(2, 4, 2, 9, 11, q=8, v=5, dtype=torch.float32))
    exact = rounding.attention(*leaves, scale=0.5)
    leaves[odd] = _strided(leaves[odd], pattern)
    assert not leaves[odd].is_contiguous()
    assert exact.holds(form(*leaves, scale=0.5))
