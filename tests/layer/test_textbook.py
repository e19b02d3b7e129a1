"""The textbook's function: weights from the right, sizes never square, held to numbers by hand and to torch's own module."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import manyheads  # noqa: E402
from attention_layers import layer, tokens  # noqa: E402
from manyheads import AttentionSpec, SpecError, mha  # noqa: E402


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
        (((6, 6), (6, 6), (6, 6), (6, 6)), 0, "a multiple of 0 heads"),
    ],
)
def test_sizes_that_do_not_fit(sizes: tuple, heads: int, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        mha(torch.zeros(1, 3, 6), *(torch.zeros(size) for size in sizes), heads)


def test_a_mask_is_boolean() -> None:
    weights = [torch.zeros(6, 6)] * 4
    with pytest.raises(SpecError, match=r"True = may attend, found torch\.float32"):
        mha(torch.zeros(1, 3, 6), *weights, 2, torch.ones(3, 3))


def test_both_are_public() -> None:
    assert manyheads.Attention(AttentionSpec.mha(8, 2)).spec == AttentionSpec.mha(8, 2)
