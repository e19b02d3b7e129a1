"""RMSNorm and LayerNorm: torch's, gains as families store them, float32 inside, per head and full width."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import layer_norm, rms_norm

from manyheads.ops import norm
from manyheads.spec.norms import Norm

f64 = torch.float64


def test_rms_and_layer_are_torchs() -> None:
    x, g, shift = torch.randn(2, 3, 8, dtype=f64), torch.randn(8, dtype=f64), torch.randn(8, dtype=f64)
    assert torch.allclose(norm.rms(x, g, eps=1e-5), rms_norm(x, (8,), g, 1e-5), atol=1e-14)
    assert torch.allclose(norm.layer(x, g, eps=1e-5, bias=shift), layer_norm(x, (8,), g, shift, 1e-5), atol=1e-14)
    assert torch.allclose(norm.rms(x, eps=1e-5, gain="none"), rms_norm(x, (8,), None, 1e-5), atol=1e-14)


def test_a_gain_stored_as_1_plus_w() -> None:
    x, w = torch.randn(2, 3, 8, dtype=f64), torch.randn(8, dtype=f64)
    assert torch.allclose(norm.rms(x, w, eps=1e-6, gain="1+w"), rms_norm(x, (8,), 1 + w, 1e-6), atol=1e-14)


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_a_spec_is_followed(kind: str) -> None:
    x, w = torch.randn(2, 3, 8, dtype=f64), torch.randn(8, dtype=f64)
    for gain, weight in (("w", w), ("1+w", w), ("none", None)):
        got = norm.normalise(x, Norm(kind, 1e-3, gain, shift=True), weight, bias=w)
        assert torch.equal(got, getattr(norm, kind)(x, weight, eps=1e-3, gain=gain, bias=w))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_sum_of_squares_is_wide(dtype: torch.dtype) -> None:
    """300² = 90,000 is beyond float16; y is rounded once, after the gain."""
    x = (300 * torch.randn(4, 64)).to(dtype)
    g = torch.randn(64).to(dtype)
    got, want = norm.rms(x, g, eps=1e-6), norm.rms(x.double(), g.double(), eps=1e-6)
    assert got.dtype == dtype
    assert ((got.double() - want).abs() <= torch.finfo(dtype).eps * want.abs()).all()


def test_o49_o50_per_head_and_full_width_with_fewer_key_heads() -> None:
    """(b, t, h, q): one gain a head's width, shared; a gain a head; or one norm over all heads, H·q and K·q wide."""
    for heads in (4, 2):
        x = torch.randn(2, 3, heads, 8, dtype=f64)
        shared, own = torch.randn(8, dtype=f64), torch.randn(heads, 8, dtype=f64)
        each = norm.rms(x, shared, eps=1e-6)
        full = norm.rms(x, own, eps=1e-6)
        for head in range(heads):
            assert torch.allclose(each[:, :, head], rms_norm(x[:, :, head], (8,), shared, 1e-6), atol=1e-14)
        assert torch.allclose(full.flatten(2), rms_norm(x.flatten(2), (heads * 8,), own.flatten(), 1e-6), atol=1e-14)
        assert (full - norm.rms(x, eps=1e-6, gain="none") * own).abs().max() > 1e-3


def test_gradcheck() -> None:
    x, g, shift = (torch.randn(size, dtype=f64, requires_grad=True) for size in ((2, 3, 4), (4,), (4,)))
    for function in (norm.rms, norm.layer):
        assert torch.autograd.gradcheck(
            lambda x, g, b, f=function: f(x, g, eps=1e-3, gain="1+w", bias=b), (x, g, shift)
        )
