"""Rotary embedding against complex numbers, at far positions, in every dtype; scalings against transformers' own."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import pytest
import torch
from torch import Tensor

from manyheads.ops import rope
from manyheads.spec.positions import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoScaling,
    Rope,
    YarnScaling,
)

f64 = torch.float64
LAYOUTS = ("halves", "interleaved")


def by_complex_numbers(x: Tensor, positions: list[int], described: Rope) -> Tensor:
    """Each pair as a complex number times e^(i · position · base^(-2k/dim)); the angle exact to 40 digits."""
    half, out = described.dim // 2, x.clone()
    for t, position in enumerate(positions):
        for k in range(half):
            with localcontext() as context:
                context.prec = 40
                turns = Decimal(position) * (Decimal(described.base).ln() * Decimal(-2 * k) / described.dim).exp()
                pi = Decimal("3.14159265358979323846264338327950288419716939937510")
                angle = float(turns % (2 * pi))
            one, two = (k, k + half) if described.layout == "halves" else (2 * k, 2 * k + 1)
            turned = torch.complex(x[..., t, one], x[..., t, two]) * complex(math.cos(angle), math.sin(angle))
            out[..., t, one], out[..., t, two] = turned.real, turned.imag
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dim", [8, 6, 2])
def test_o28_pairs_turn_at_far_positions(layout: str, dim: int) -> None:
    """Either pairing looks right near 0: positions beyond 1,000 tell. Partial widths pass the rest through."""
    places = [0, 1, 50, 1000, 4095, 131_071]
    described = Rope(dim, 10000.0, layout)
    x = torch.randn(2, 3, len(places), 8, dtype=f64)
    got = rope.apply(x, *rope.angles(torch.tensor(places), described, dtype=f64), layout)
    assert torch.allclose(got, by_complex_numbers(x, places, described), atol=1e-10)
    assert torch.equal(got[..., dim:], x[..., dim:])
    other = LAYOUTS[1 - LAYOUTS.index(layout)]
    if dim > 2:
        assert (rope.apply(x, *rope.angles(torch.tensor(places), described, dtype=f64), other) - got).abs().max() > 0.1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_depend_on_distance_alone(layout: str) -> None:
    q, k = (torch.randn(1, 1, 1, 8, dtype=f64) for _ in range(2))
    described, found = Rope(8, layout=layout), []
    for shift in (0, 7, 1000):
        turned = [
            rope.apply(x, *rope.angles(torch.tensor([at + shift]), described, dtype=f64), layout)
            for x, at in ((q, 9), (k, 4))
        ]
        found.append((turned[0] * turned[1]).sum().item())
    assert found[1:] == pytest.approx([found[0]] * 2, abs=1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_o30_tables_are_wide_whatever_the_model_is(dtype: torch.dtype) -> None:
    """bfloat16 cannot hold 257, float16 not 2,049: angles are made wide and x is rounded once."""
    places = torch.tensor([0, 1, 256, 257, 600, 2049, 15_962, 100_003])
    wide = rope.angles(places, Rope(8), dtype=f64)
    for narrow, table in zip(rope.angles(places, Rope(8), dtype=dtype), wide, strict=True):
        assert narrow.dtype == torch.float32
        assert (narrow.double() - table).abs().max() < 6e-8
    x = torch.randn(1, 2, len(places), 8).to(dtype)
    got = rope.apply(x, *rope.angles(places, Rope(8), dtype=dtype))
    want = rope.apply(x.double(), *wide)
    assert got.dtype == dtype
    assert ((got.double() - want).abs() <= torch.finfo(dtype).eps * want.abs() + 1e-6).all()


def test_o14_a_cached_step_turns_by_its_own_position() -> None:
    x = torch.randn(2, 3, 6, 8, dtype=f64)
    whole = rope.apply(x, *rope.angles(torch.arange(6), Rope(8), dtype=f64))
    prompt = rope.apply(x[:, :, :4], *rope.angles(torch.arange(4), Rope(8), dtype=f64))
    steps = [rope.apply(x[:, :, t : t + 1], *rope.angles(torch.tensor([t]), Rope(8), dtype=f64)) for t in (4, 5)]
    assert torch.equal(torch.cat((prompt, *steps), 2), whole)


def test_positions_of_each_sequence() -> None:
    x, places = torch.randn(2, 3, 4, 8, dtype=f64), torch.tensor([[0, 1, 2, 3], [0, 0, 0, 1]])
    got = rope.apply(x, *rope.angles(places, Rope(6), dtype=f64))
    for one in range(2):
        alone = rope.apply(x[one, None], *rope.angles(places[one], Rope(6), dtype=f64))
        assert torch.equal(got[one], alone[0])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradcheck(layout: str) -> None:
    x = torch.randn(1, 2, 3, 6, dtype=f64, requires_grad=True)
    table = rope.angles(torch.tensor([0, 5, 1000]), Rope(4), dtype=f64)
    assert torch.autograd.gradcheck(lambda x: rope.apply(x, *table, layout), (x,))


def test_linear_scaling_divides_positions() -> None:
    assert rope.frequencies(Rope(4, 100.0, scaling=LinearScaling(4.0))) == pytest.approx((0.25, 0.025))


YARN = YarnScaling(40.0, 4096, mscale=0.707, mscale_all_dim=0.707)


def test_o96_yarn_scales_the_softmax_apart_from_the_angles() -> None:
    """0.707: 1.5896 times 192^-0.5 = 0.114721; 1.0: 1.8739 times, 0.135234; cos and sin stay as they are."""
    for mscale, times, scale in ((0.707, 1.5896, 0.114721), (1.0, 1.8739, 0.135234)):
        squared = rope.yarn_mscale(40.0, mscale) ** 2
        assert squared == pytest.approx(times, abs=5e-5)
        assert squared * 192**-0.5 == pytest.approx(scale, abs=5e-7)
    assert rope.attention_factor(Rope(64, scaling=YARN)) == 1.0
    assert rope.yarn_mscale(1.0, 0.707) == 1.0


def test_attention_factors() -> None:
    ln40 = math.log(40)
    for scaling, want in (
        (NoScaling(), 1.0),
        (YarnScaling(40.0, 4096), 0.1 * ln40 + 1),
        (YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=0.5), (0.1 * ln40 + 1) / (0.05 * ln40 + 1)),
        (YarnScaling(40.0, 4096, attention_factor=1.3), 1.3),
        (LongRopeScaling(4096, (1.0,) * 4, (2.0,) * 4, attention_factor=1.19), 1.19),
    ):
        described = Rope(8, scaling=scaling)
        assert rope.attention_factor(described) == pytest.approx(want)
        cos, _ = rope.angles(torch.tensor([0]), described, length=1)
        assert cos.flatten().tolist() == pytest.approx([want] * 4)


# our scaling, transformers' rope_parameters beside rope_type, and how long the sequence is
SCALINGS = {
    "default": (NoScaling(), {}, 1),
    "linear": (LinearScaling(4.0), {"factor": 4.0}, 1),
    "dynamic": (DynamicScaling(2.0, 64), {"factor": 2.0}, 200),
    "llama3": (
        Llama3Scaling(8.0, 1.0, 4.0, 8192),
        {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, 1),
    "yarn": (
        YARN,
        {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707, "mscale_all_dim": 0.707}, 1),
    "yarn, ramp from pair 0": (
        YarnScaling(4.0, 64, truncate=False), {"factor": 4.0, "original_max_position_embeddings": 64, "truncate": False}, 1),
    "yarn, ramp to the end": (YarnScaling(4.0, 10**10), {"factor": 4.0, "original_max_position_embeddings": 10**10}, 1),
    "longrope": (
        LongRopeScaling(64, tuple(1 + i / 8 for i in range(8)), tuple(2.0 + i for i in range(8)), attention_factor=1.2),
        {"short_factor": [1 + i / 8 for i in range(8)], "long_factor": [2.0 + i for i in range(8)],
         "original_max_position_embeddings": 64, "attention_factor": 1.2}, 65),
}  # fmt: skip


@pytest.mark.parametrize("base", [10000.0, 500000.0])
@pytest.mark.parametrize("kind", SCALINGS)
def test_scalings_are_transformers_own(kind: str, base: float) -> None:
    """Frequencies to float32's rounding (transformers makes them in float32), and cos and sin beyond position 0."""
    transformers = pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    scaling, parameters, length = SCALINGS[kind]
    config = transformers.LlamaConfig(
        hidden_size=64, num_attention_heads=4, head_dim=16, max_position_embeddings=64,
        rope_parameters={"rope_type": kind.split(",", maxsplit=1)[0], "rope_theta": base, **parameters},
    )  # fmt: skip
    theirs = LlamaRotaryEmbedding(config)
    places = torch.arange(length if length > 1 else 60)[None]
    cos, sin = theirs(torch.zeros(1), places)
    described = Rope(16, base, scaling=scaling)
    assert rope.frequencies(described, length=length) == pytest.approx(theirs.inv_freq.tolist(), rel=2e-6)
    ours = rope.angles(places, described, length=length)
    for mine, other in zip(ours, (cos, sin), strict=True):
        assert (mine - other[..., :8]).abs().max() < 5e-5  # float32 angles of up to 200 radians


def test_longrope_is_short_up_to_the_original_context() -> None:
    described = Rope(4, scaling=LongRopeScaling(64, (1.0, 1.0), (2.0, 4.0)))
    short, long = (rope.frequencies(described, length=n) for n in (64, 65))
    assert [a / b for a, b in zip(short, long, strict=True)] == pytest.approx([2.0, 4.0])


def test_dynamic_scaling_starts_at_the_original_context() -> None:
    described = Rope(8, scaling=DynamicScaling(2.0, 64))
    assert rope.frequencies(described, length=64) == pytest.approx(rope.frequencies(Rope(8)))
    assert rope.frequencies(described, length=128)[1] == pytest.approx((10000.0 * 3 ** (8 / 6)) ** (-2 / 8))
