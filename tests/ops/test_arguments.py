"""What acts on the logits is checked in one place: every form refuses the same values, and None alone switches off."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from manyheads.errors import SpecError
from manyheads.ops import arguments, bias, latent, linear, masks, rope, sdpa, softmax, tiled
from manyheads.ops.call import AttentionCall
from manyheads.spec.positions import Rope

NAN, INF = math.nan, math.inf
NO_NUMBERS = (0, 0.0, -2.0, NAN, INF, -INF, True, "1", torch.tensor(1.0))
TORCH = torch.Generator().manual_seed(0)
Q = torch.randn(1, 4, 1, 16, generator=TORCH)
K = torch.randn(1, 2, 6, 16, generator=TORCH)
FORMS: dict[str, Callable[..., object]] = {
    "plain": lambda **options: softmax.attention(Q, K, K, **options),
    "tiled": lambda **options: tiled.attention(Q, K, K, **options),
    "sdpa": lambda **options: sdpa.attention(Q, K, K, **options),
    "call": lambda **options: AttentionCall.checked(Q, K, K, **options),
    "scores": lambda **options: softmax.scores(Q, K, **options),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_cap_and_a_scale_are_finite_and_above_0(form: str) -> None:
    for value in NO_NUMBERS:
        with pytest.raises(SpecError, match="softcap must be a finite number above 0; None for no cap; found"):
            FORMS[form](scale=0.25, softcap=value)
        with pytest.raises(SpecError, match="scale must be a finite number above 0; found"):
            FORMS[form](scale=value)
    FORMS[form](scale=0.25, softcap=None)
    FORMS[form](scale=1, softcap=30)


@pytest.mark.parametrize("form", FORMS)
def test_sinks_and_slopes_and_a_small_bias_hold_numbers(form: str) -> None:
    wrong: tuple[tuple[str, object, str], ...] = (
        ("sinks", torch.tensor([0.0, NAN, 0.0, 0.0]), "sinks must be finite, or -inf"),
        ("sinks", torch.tensor([0.0, INF, 0.0, 0.0]), "sinks must be finite, or -inf"),
        ("sinks", torch.tensor([0, 0, 0, 0]), "floating logit"),
        ("bias", torch.tensor([0.0, NAN, 0.0, 0.0, 0.0, NAN]), "found nan in 2 of 6"),
        ("bias", torch.tensor([0.0, INF, 0.0, 0.0, 0.0, 0.0]), "found inf in 1 of 6"),
        ("bias", bias.Alibi(torch.tensor([0.5, -0.5, 0.5, 0.5])), "slopes must be finite and 0 or more"),
        ("bias", bias.Alibi(torch.tensor([0.5, NAN, 0.5, 0.5])), "slopes must be finite and 0 or more"),
        ("bias", bias.Alibi(torch.tensor([0.5, INF, 0.5, 0.5])), "slopes must be finite and 0 or more"),
    )
    for name, value, words in wrong:
        with pytest.raises(SpecError, match=words):
            FORMS[form](scale=0.25, **{name: value})


@pytest.mark.parametrize("form", [softmax.attention, tiled.attention, sdpa.attention])
def test_what_a_large_bias_holds_shows_in_every_form(form: Callable[..., Tensor]) -> None:
    """By hand: NaN + x is NaN, inf - inf is NaN; a head that is hidden whole gives zeros."""
    keys = torch.randn(1, 2, 2000, 16, generator=TORCH)
    for value in (NAN, INF, -INF):
        extra = torch.zeros(1, 4, 1, 2000)
        assert extra.numel() > arguments.LARGEST_LOOKED_AT
        extra[0, 1] = value
        out = form(Q, keys, keys, scale=0.25, bias=extra)
        assert out[:, [0, 2, 3]].isfinite().all()
        assert (out[:, 1] == 0).all() if value == -INF else out[:, 1].isnan().all()


@pytest.mark.parametrize("form", [softmax.attention, tiled.attention, sdpa.attention])
def test_a_sink_of_minus_infinity_is_no_sink(form: Callable[..., Tensor]) -> None:
    sinks = torch.tensor([-INF, 0.0, -INF, 2.0])
    out, without = (form(Q, K, K, scale=0.25, sinks=each) for each in (sinks, None))
    # float32 rounding of a convex combination of values up to 4
    torch.testing.assert_close(out[:, ::2], without[:, ::2], atol=2e-6, rtol=0)
    assert ((out - without)[:, 1::2].abs().amax(-1) > 1e-3).all()


def test_linear_and_latent_attention_ask_the_same() -> None:
    x = torch.rand(1, 2, 3, 4)
    latents, rotary, up = torch.rand(1, 3, 5), torch.rand(1, 3, 4), torch.rand(2, 4, 5)
    for value in (0.0, NAN, -1.0):
        for form in (linear.recurrent, linear.chunked, linear.quadratic):
            with pytest.raises(SpecError, match="scale must be a finite number above 0"):
                form(x, x, x, scale=value)
        for core in (latent.expanded, latent.absorbed):
            with pytest.raises(SpecError, match="scale must be a finite number above 0"):
                core(x, x, latents, rotary, up, up, scale=value)


def test_a_window_and_a_share_that_are_none() -> None:
    for window in (0, -1, 2.0, True):
        with pytest.raises(SpecError, match="window must"):
            arguments.check_window(window)  # type: ignore[arg-type]
    arguments.check_window(None)
    arguments.check_window(1)
    for share in (-0.1, 1, NAN, True, None):
        with pytest.raises(SpecError, match=r"dropout must lie in \[0, 1\), found"):
            arguments.check_dropout(share)  # type: ignore[arg-type]
    arguments.check_dropout(1.0, all_of_it=True)


def test_a_compiled_graph_of_another_cap_is_the_same_function() -> None:
    """Numbers are compared, never asked for their kind in a way that a graph could not guard."""
    torch._dynamo.reset()
    graph = torch.compile(
        lambda q, k, cap: softmax.attention(q, k, k, scale=0.25, softcap=cap), backend="eager", fullgraph=True
    )
    for cap in (1.5, 3.0, 4.5):
        torch.testing.assert_close(graph(Q, K, cap), softmax.attention(Q, K, K, scale=0.25, softcap=cap))


def test_what_cannot_be_looked_at_is_let_through() -> None:
    """Traces and transforms have no numbers to look at: they must not end in an error of torch's own."""
    added, sinks = torch.zeros(1, 4, 1, 6), torch.zeros(4)

    def call(extra: Tensor, sink: Tensor) -> Tensor:
        return softmax.attention(Q, K, K, scale=0.25, bias=extra, sinks=sink)  # type: ignore[return-value]

    plain = call(added, sinks)
    torch.testing.assert_close(torch.func.vmap(call, (0, None))(added.expand(3, 1, 4, 1, 6), sinks)[2], plain)
    assert torch.func.grad(lambda extra: call(extra, sinks).sum())(added).shape == added.shape
    torch.testing.assert_close(make_fx(call)(added, sinks)(added, sinks), plain)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.bool])
def test_positions_in_16_bits_are_refused(dtype: torch.dtype) -> None:
    """float16 has 11 bits of fraction, bfloat16 8: 2,049 and 257 are rounded before anything is computed from them."""
    positions = torch.arange(3).to(dtype)
    for asked in (
        lambda: rope.angles(positions, Rope(8)),
        lambda: bias.sinusoids(positions, 8),
        lambda: bias.relative_buckets(positions, num_buckets=8, max_distance=16, two_sided=True),
    ):
        with pytest.raises(SpecError, match=f"must be integers, or floats of 32 bits or more; found {dtype}"):
            asked()


def test_every_position_has_angles_of_its_own() -> None:
    for dtype in (torch.int32, torch.int64, torch.float32, torch.float64):
        positions = torch.arange(5000).to(dtype)
        cos, sin = rope.angles(positions, Rope(32))
        assert torch.unique(torch.cat((cos, sin), -1), dim=0).shape[0] == 5000
        assert torch.unique(bias.sinusoids(positions, 32), dim=0).shape[0] == 5000


def test_alibi_in_16_bits_is_rounded_once() -> None:
    """By hand: 2^-8 · 70,000 = 273.4375, of which float16 holds 273.5; 70,000 alone would be infinite in float16."""
    slopes = torch.tensor([2.0**-8])
    last = bias.alibi_bias(slopes, queries=1, keys=70_001, dtype=torch.float16)[0, 0, 0, 0]
    assert float(last) == -273.5


@pytest.mark.parametrize("form", FORMS)
def test_three_axes_that_could_be_sequences_or_heads_are_refused(form: str) -> None:
    """(3, t, s) beside 3 sequences of 3 heads; written with four axes, or of another size, it has one meaning."""
    q = torch.randn(3, 3, 2, 4, generator=TORCH)
    seen = torch.tensor([[[1, 0], [1, 1]], [[1, 1], [0, 1]], [[1, 1], [1, 1]]]).bool()
    calls: dict[str, Callable[..., object]] = {
        "plain": lambda **options: softmax.attention(q, q, q, scale=0.5, **options),
        "tiled": lambda **options: tiled.attention(q, q, q, scale=0.5, **options),
        "sdpa": lambda **options: sdpa.attention(q, q, q, scale=0.5, **options),
        "call": lambda **options: AttentionCall.checked(q, q, q, scale=0.5, **options),
        "scores": lambda **options: softmax.scores(q, q, scale=0.5, **options),
    }
    added = torch.zeros(3, 2, 2)
    two = {"visible": seen, "bias": added}
    for name, value in two.items():
        with pytest.raises(
            SpecError, match=rf"{name} \(3, 2, 2\) can be read two ways.*{name}\[:, None\] .*{name}\[None\]"
        ):
            calls[form](**{name: value})
        for one in (value[:, None], value[None], value[:1], value[0]):
            calls[form](**{name: one})
    with pytest.raises(SpecError, match="can be read two ways"):
        calls[form](visible=masks.causal() & masks.dense(seen))


def test_a_mask_a_head_hides_in_that_head() -> None:
    q = torch.randn(3, 3, 2, 4, generator=TORCH)
    seen = torch.tensor([[[1, 0], [1, 1]], [[1, 1], [0, 1]], [[1, 1], [1, 1]]]).bool()
    for visible, axis in ((seen[:, None], 0), (seen[None], 1)):
        hidden = softmax.scores(q, q, scale=0.5, visible=visible, stage="probabilities") == 0
        assert torch.equal(hidden, ~(seen[:, None] if axis == 0 else seen[None]).expand(3, 3, 2, 2))


def test_a_dense_mask_that_is_materialised_asks_the_same() -> None:
    mask = masks.dense(torch.ones(3, 2, 2, dtype=torch.bool))
    with pytest.raises(SpecError, match="can be read two ways"):
        masks.materialise(mask, batch=3, heads=3, queries=2, keys=2)
    assert masks.materialise(mask, batch=2, heads=3, queries=2, keys=2).shape == (1, 3, 2, 2)


def test_sizes_that_are_no_integers() -> None:
    x = torch.rand(1, 2, 3, 4)
    for asked in (
        lambda: bias.alibi_slopes(2.0),  # type: ignore[arg-type]
        lambda: bias.sinusoids(torch.arange(3), 4.0),  # type: ignore[arg-type]
        lambda: tiled.attention(x, x, x, scale=0.5, tile=2.0),  # type: ignore[arg-type]
        lambda: linear.chunked(x, x, x, size=2.0),  # type: ignore[arg-type]
    ):
        with pytest.raises(SpecError, match="must be an integer of 1 or more, found"):
            asked()
