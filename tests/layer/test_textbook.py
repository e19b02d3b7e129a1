"""The textbook's function: weights from the right, sizes never square, held to numbers by hand and to torch's own module."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import manyheads  # noqa: E402
from manyheads import AttentionSpec, SpecError, mha  # noqa: E402
from support.attention_layers import layer, tokens  # noqa: E402


def test_by_hand() -> None:
    """d_model 1, one head: q = k = x, so token 1 of (1, 2) weighs e^2 and e^4; values x, output twice that."""
    one = torch.ones(1, 1, dtype=torch.float64)
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    y = mha(x, one, one, one, 2 * one, 1)
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    for token, out in zip((1.0, 2.0), y[:, 0], strict=True):
        a, b = e**token, e ** (2 * token)
        torch.testing.assert_close(out, 2 * (a + 2 * b) / (a + b))


def test_it_is_the_layer_on_sizes_that_are_not_square() -> None:
    """3 heads, d_k 4, d_v 5, d_model 7: a transposed W_O would not fit."""
    made, x = layer(AttentionSpec.gqa(7, 3, 3, head_dim=4, v_head_dim=5)), tokens(2, 6, 7)
    W_Q, W_K, W_V = (getattr(made, name).flatten(0, 1).T for name in "qkv")
    W_O = made.o.flatten(1).T
    assert W_O.shape == (15, 7)
    visible = torch.ones(6, 6, dtype=torch.bool).tril()
    torch.testing.assert_close(mha(x, W_Q, W_K, W_V, W_O, 3, visible), made(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mha(x[0], W_Q, W_K, W_V, W_O, 3, visible), made(x)[0], rtol=1e-12, atol=1e-12)
    assert not torch.allclose(mha(x, W_Q, W_K, W_V, W_O, 3), made(x))


def test_it_is_torchs_module() -> None:
    """nn.MultiheadAttention stores (out, in): its matrices transposed are the paper's."""
    torch.manual_seed(0)
    theirs, x = torch.nn.MultiheadAttention(12, 3, bias=False, batch_first=True, dtype=torch.float64), tokens(2, 5, 12)
    matrices = [W.T for W in theirs.in_proj_weight.chunk(3)]
    y, _ = theirs(x, x, x)
    torch.testing.assert_close(mha(x, *matrices, theirs.out_proj.weight.T, 3), y, rtol=1e-12, atol=1e-12)


def test_a_token_that_sees_nothing_is_zero_and_so_is_its_gradient() -> None:
    x = tokens(1, 3, 6).requires_grad_()
    weights = [torch.randn(6, 6, dtype=torch.float64) for _ in range(4)]
    visible = torch.tensor([[True, True, True], [False, False, False], [False, True, True]])
    y = mha(x, *weights, 2, visible)
    assert not y[0, 1].any()
    y[0, 1].sum().backward()
    assert not x.grad.any()


@pytest.mark.parametrize(
    ("sizes", "heads", "message"),
    [
        (((6, 6), (6, 6), (6, 6), (6, 6)), 4, r"W_Q must be \(6, a multiple of 4 heads\), found \(6, 6\)"),
        (((6, 6), (6, 4), (6, 6), (6, 6)), 2, r"one shape, found \(6, 6\) and \(6, 4\)"),
        (((6, 6), (6, 6), (6, 8), (6, 8)), 2, r"W_O must be \(8, 6\), found \(6, 8\)"),
        (((5, 6), (6, 6), (6, 6), (6, 6)), 2, r"W_Q must be \(6, a multiple of 2 heads\), found \(5, 6\)"),
        (((6, 6), (6, 6), (6, 6), (6, 6)), 0, "num_heads must lie in .1, 1099511627776., found 0"),
        (((6, 6), (6, 6), (6, 6), (6, 6)), 2.0, "num_heads must be an integer of 1 or more, found 2.0"),
    ],
)
def test_sizes_that_do_not_fit(sizes: tuple, heads: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        mha(torch.zeros(1, 3, 6), *(torch.zeros(size) for size in sizes), heads)


def test_narrow_types_are_rounded_once() -> None:
    """Against float64: the result is rounded to a type of p significant bits by 2^-p of its size at most, and what float32
    adds to that, some hundreds of roundings by 2^-24 of values of the result's size, stays below 2^-20 of the largest.
    """
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(32, 32, generator=generator) / 32**0.5 for _ in range(4)]
    x = torch.randn(1, 64, 32, generator=generator) * 3
    for dtype, bits in ((torch.float16, 11), (torch.bfloat16, 8), (torch.float32, 24)):
        narrow = [each.to(dtype) for each in (x, *weights)]
        exact = mha(*(each.double() for each in narrow), 2)
        found = mha(*narrow, 2)
        assert found.dtype == dtype
        bound = exact.abs() * 2.0**-bits + exact.abs().max() * 2.0**-20
        assert ((found.double() - exact).abs() <= bound).all()


def test_scores_beyond_the_largest_float16() -> None:
    """By hand: tokens of 64 elements of 40 score 64 · 1600 = 102,400 everywhere, above 65,504: their mean is 40."""
    eye = torch.eye(64, dtype=torch.float16)
    x = torch.full((1, 2, 64), 40.0, dtype=torch.float16)
    assert torch.equal(mha(x, eye, eye, eye, eye, 1), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(mha(x, eye, eye, eye, eye, 1), x)


def test_a_mask_has_the_axes_of_the_scores() -> None:
    weights = [torch.eye(6, dtype=torch.float64)] * 4
    x, visible = tokens(2, 3, 6), torch.ones(2, 3, 3, dtype=torch.bool)
    visible[0, 2, 0] = False
    with pytest.raises(
        SpecError, match=r"visible must be \(3, 3\), or \(2, 2, 3, 3\).*found \(2, 3, 3\).*visible\[:, None\]"
    ):
        mha(x, *weights, 2, visible)
    for wrong in (visible[:, :2], visible[..., :2], torch.ones(2, 3, 3, 3, dtype=torch.bool)):
        with pytest.raises(SpecError, match="visible must be"):
            mha(x, *weights, 2, wrong)
    by_sequence = mha(x, *weights, 2, visible[:, None])
    torch.testing.assert_close(by_sequence[0], mha(x[0], *weights, 2, visible[0]))
    torch.testing.assert_close(by_sequence[1], mha(x[1], *weights, 2))
    by_head = mha(x, *weights, 2, visible[None])
    assert not torch.allclose(by_head[1], by_sequence[1])
    torch.testing.assert_close(by_head[1], mha(x[1], *weights, 2, visible))  # (H, t, t) of tokens (t, d_model)


def test_a_mask_is_boolean() -> None:
    weights = [torch.zeros(6, 6)] * 4
    with pytest.raises(SpecError, match=r"True = may attend, found torch\.float32"):
        mha(torch.zeros(1, 3, 6), *weights, 2, torch.ones(3, 3))


def test_types_that_do_not_agree() -> None:
    weights = [torch.zeros(6, 6)] * 4
    with pytest.raises(SpecError, match=r"W_Q is torch\.float32 on cpu, x is torch\.float64 on cpu"):
        mha(torch.zeros(1, 3, 6, dtype=torch.float64), *weights, 2)
    with pytest.raises(SpecError, match=r"x must be floating tokens.*torch\.int64"):
        mha(torch.zeros(1, 3, 6, dtype=torch.int64), *weights, 2)


def test_both_are_public() -> None:
    assert manyheads.Attention(AttentionSpec.mha(8, 2)).spec == AttentionSpec.mha(8, 2)
