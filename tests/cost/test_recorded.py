"""Closed forms against recorded contractions, on random specs of every scheme, non-square everywhere."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from manyheads.cost import layer
from manyheads.cost.model import mlp_token_macs
from manyheads.spec import (
    AttentionSpec,
    Bias,
    Bidirectional,
    Borrowed,
    Causal,
    Cross,
    Heads,
    Latent,
    Mlp,
    Moe,
    NoPositions,
    Rope,
    Self,
    State,
)
from support.recorder import run_attention, run_mlp


def random_heads(draw: random.Random) -> AttentionSpec:
    group, kv_heads = draw.randint(1, 4), draw.randint(1, 4)
    source = draw.choice([Self(), Self(), Cross(draw.randint(3, 30)), Borrowed(0)])
    return AttentionSpec(
        d_model=draw.randint(5, 40), num_heads=group * kv_heads,
        kv=Heads(kv_heads, draw.randint(1, 9), draw.randint(1, 9)), positions=NoPositions(),
        mask=Bidirectional() if isinstance(source, Cross) else Causal(), source=source,
        bias=Bias.of(draw.choice(["", "qkv", "qkvo"])), scale=1.0, output_gate=draw.random() < 0.3,
    )  # fmt: skip


def random_latent(draw: random.Random) -> AttentionSpec:
    rope = 2 * draw.randint(0, 3)
    return AttentionSpec(
        d_model=draw.randint(5, 40), num_heads=draw.randint(1, 6),
        kv=Latent(draw.randint(2, 20), draw.randint(1, 9), rope, draw.randint(1, 9), draw.choice([0, 7])),
        positions=Rope(rope, layout="interleaved") if rope else NoPositions(), mask=Causal(), scale=1.0,
        output_gate=draw.random() < 0.3,
    )  # fmt: skip


def random_state(draw: random.Random) -> AttentionSpec:
    keys, times, more = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 3)
    learned, rule = draw.random() < 0.5, draw.choice(["sum", "gated", "delta", "gated_delta"])
    q = draw.randint(1, 8)
    few, many = keys, keys * times
    keys, values = draw.choice([(few, many), (many, few)])
    heads = draw.choice([many * more, many])
    return AttentionSpec(
        d_model=draw.randint(5, 40), num_heads=heads,
        kv=State(
            keys, values, many, q, draw.randint(2, 9) if learned else q, draw.randint(1, 9),
            "learned" if learned else "elu+1", draw.random() < 0.5, rule,
            draw.choice(["per_head", "per_channel"]) if "gated" in rule else "none",
            draw.choice(["scalar", "per_head"]) if "delta" in rule else "none", draw.choice([0, 4]),
        ),
        positions=NoPositions(), mask=Causal(), scale=1.0, output_gate=draw.random() < 0.3,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("kind", [random_heads, random_latent, random_state])
def test_attention(kind, seed):
    draw = random.Random(seed)
    spec = kind(draw)
    queries = draw.randint(1, 6)
    keys, memory = queries + draw.randint(0, 9), draw.randint(1, 7)
    forms = ("expanded", "absorbed") if isinstance(spec.kv, Latent) else ("expanded",)
    for form in forms:
        tape = run_attention(spec, queries, keys, memory, form)
        crossing = isinstance(spec.source, Cross)
        projected = queries * layer.query_token_macs(spec)
        projected += (memory if crossing else queries) * layer.key_token_macs(spec)
        assert tape.macs["projection"] == projected
        assert tape.macs["core"] == layer.core_macs(spec, queries, memory if crossing else keys, form)[0]


@pytest.mark.parametrize("seed", range(20))
def test_more_value_heads_than_query_heads(seed):
    """Gated DeltaNet: queries and keys of few heads, repeated for more value and state heads."""
    draw = random.Random(seed)
    few, times = draw.randint(1, 3), draw.randint(2, 4)
    spec = AttentionSpec(
        d_model=11, num_heads=few, positions=NoPositions(), mask=Causal(), scale=1.0,
        kv=State(few, few * times, few * times, 5, 5, 3, "identity", False, "gated_delta", "per_head", "per_head", 4),
        output_gate=True,
    )  # fmt: skip
    tape = run_attention(spec, 4, 4)
    assert tape.macs["projection"] == 4 * layer.query_token_macs(spec)
    assert tape.macs["core"] == 4 * layer.state_token_macs(spec)


@pytest.mark.parametrize("seed", range(20))
def test_mlp_and_mixtures(seed):
    draw = random.Random(seed)
    experts = draw.randint(1, 6)
    shared = draw.choice([0, draw.randint(1, 9)])
    for mlp in (
        Mlp(draw.randint(1, 30), gated=draw.random() < 0.5),
        Moe(
            experts, draw.randint(1, experts), draw.randint(1, 9), shared, draw.random() < 0.5,
            shared_gate=bool(shared) and draw.random() < 0.5,
        ),
    ):  # fmt: skip
        assert run_mlp(mlp, 13, 7) == 7 * mlp_token_macs(mlp, 13)
