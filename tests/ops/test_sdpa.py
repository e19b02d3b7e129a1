"""What goes to torch's SDPA and what does not, with the reason; and that nothing is rounded on the way."""

from __future__ import annotations

import pytest
import torch

from manyheads.ops import bias, masks, sdpa, softmax, tiled
from manyheads.ops.call import AttentionCall
from support import rounding


def qkv(t: int = 4, s: int = 6, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    return (
        torch.randn(2, 4, t, 8, dtype=dtype),
        torch.randn(2, 2, s, 8, dtype=dtype),
        torch.randn(2, 2, s, 3, dtype=dtype),
    )


YES = {
    "nothing": ({}, 4, 6),
    "a mask": ({"visible": masks.causal()}, 4, 6),
    "a bias": ({"bias": torch.randn(4, 6), "visible": masks.causal()}, 4, 6),
    "a long causal square": ({"visible": masks.causal()}, 8192, 8192),
    "one token after many": ({"visible": masks.causal()}, 1, 2**24 + 8),
}
NO = {
    "softcap": ({"softcap": 5.0}, 4, 6, "softcap"),
    "sinks": ({"sinks": torch.zeros(4)}, 4, 6, "sinks"),
    "no keys": ({}, 4, 0, "no tokens"),
    "a long window": ({"visible": masks.window(16)}, 8192, 8192, "8192 x 8192 = 67108864 elements"),
    "a long causal rectangle": ({"visible": masks.causal()}, 4096, 8192, "33554432"),
}


@pytest.mark.parametrize("name", YES)
def test_yes(name: str) -> None:
    asked, t, s = YES[name]
    q, k, v = (x.to("meta") for x in qkv(1, 1))
    q, k, v = q.expand(2, 4, t, 8), k.expand(2, 2, s, 8), v.expand(2, 2, s, 3)
    answer = sdpa.supports(AttentionCall.checked(q, k, v, scale=0.5, **asked))
    assert answer
    assert answer == sdpa.Yes()


@pytest.mark.parametrize("name", NO)
def test_no_has_a_reason(name: str) -> None:
    asked, t, s, words = NO[name]
    q, k, v = (x.to("meta") for x in qkv(1, 1))
    if s:
        q, k, v = q.expand(2, 4, t, 8), k.expand(2, 2, s, 8), v.expand(2, 2, s, 3)
    else:
        q, k, v = q.expand(2, 4, t, 8), k[:, :, :0], v[:, :, :0]
    answer = sdpa.supports(AttentionCall.checked(q, k, v, scale=0.5, **asked))
    assert not answer
    assert words in answer.reason


def test_what_is_not_supported_runs_tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", None)
    q, k, v = qkv()
    got = sdpa.attention(q, k, v, scale=0.5, softcap=2.0)
    assert torch.equal(got, tiled.attention(q, k, v, scale=0.5, softcap=2.0))
    with pytest.raises(TypeError):  # and what is supported does not
        sdpa.attention(q, k, v, scale=0.5)


def test_the_causal_flag_is_used_only_where_it_means_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = []
    real = sdpa.scaled_dot_product_attention

    def watched(*tensors: torch.Tensor, **asked: object) -> torch.Tensor:
        flags.append((asked["is_causal"], asked["attn_mask"] is None))
        return real(*tensors, **asked)

    monkeypatch.setattr(sdpa, "scaled_dot_product_attention", watched)
    for (t, s), offset in (
        ((6, 6), None),
        ((4, 6), None),
        ((4, 6), 0),
        ((1, 6), None),
        ((6, 6), torch.tensor(0)),
        ((6, 6), -1),
    ):
        q, k, v = qkv(t, s)
        got = sdpa.attention(q, k, v, scale=0.5, visible=masks.causal(), offset=offset)
        assert rounding.attention(q, k, v, scale=0.5, visible=masks.causal(), offset=offset).holds(got)
    assert flags == [(True, True), (False, False), (False, False), (False, True), (False, False), (False, False)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_wide_bias_is_not_rounded_to_a_narrow_dtype(dtype: torch.dtype) -> None:
    """At distance 1,000 bfloat16 counts in steps of 4: a bias rounded to it would move the result by far more."""
    q, k, v = qkv(4, 1000, dtype)
    for added in (torch.randn(4, 1000) + 1000.0, bias.Alibi(bias.alibi_slopes(4))):
        got = sdpa.attention(q, k, v, scale=0.5, bias=added)
        want = softmax.attention(q.double(), k.double(), v.double(), scale=0.5, bias=added)
        assert (got.double() - want).abs().max() < 1e-2


def test_a_float64_bias_on_float32_goes_to_the_tiled_form() -> None:
    q, k, v = qkv()
    assert (
        "round"
        in sdpa.supports(AttentionCall.checked(q, k, v, scale=0.5, bias=torch.randn(4, 6, dtype=torch.float64))).reason
    )
    assert sdpa.supports(AttentionCall.checked(q.double(), k.double(), v.double(), scale=0.5, bias=torch.randn(4, 6)))
