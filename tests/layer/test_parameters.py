"""Parameters are the inventory: as many, as named, as shaped; and how they start."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402

from manyheads.errors import SpecError  # noqa: E402
from manyheads.layer import Attention  # noqa: E402
from manyheads.layer.parameters import parameter_name  # noqa: E402
from manyheads.spec import AttentionSpec, Bidirectional, State, parse, weights  # noqa: E402
from support.attention_layers import SPECS, layer, tokens  # noqa: E402
from support.strategies import attention_specs  # noqa: E402

# facts.md 4.6: the paper's base layer, GPT-2 small, Whisper large (no bias on k), Llama-3-8B, Qwen2-7B, Gemma-7B.
COUNTS = {
    1_048_576: AttentionSpec.mha(512, 8),
    2_362_368: AttentionSpec.mha(768, 12, bias="qkvo"),
    6_557_440: AttentionSpec.mha(1280, 20, bias="qvo"),
    41_943_040: AttentionSpec.gqa(4096, 32, 8),
    29_364_736: AttentionSpec.gqa(3584, 28, 4, bias="qkv"),
    50_331_648: AttentionSpec.mha(3072, 16, head_dim=256),
}


@pytest.mark.parametrize(("count", "spec"), COUNTS.items())
def test_published_layers_have_as_many(count: int, spec: AttentionSpec) -> None:
    made = Attention(spec, device="meta")
    assert sum(parameter.numel() for parameter in made.parameters()) == count


@settings(max_examples=60)
@given(attention_specs())
def test_every_spec_becomes_a_layer_of_its_weights(spec: AttentionSpec) -> None:
    kv = spec.kv
    if isinstance(kv, State) and (
        (kv.normalised and "delta" in kv.rule)
        or (isinstance(spec.mask, Bidirectional) and (kv.rule != "sum" or kv.conv_width))
    ):
        with pytest.raises(SpecError):
            Attention(spec)
        return
    made = Attention(spec)
    assert {name: tuple(value.shape) for name, value in made.state_dict().items()} == {
        parameter_name(weight): weight.shape for weight in weights(spec)
    }
    assert all(torch.isfinite(value).all() for value in made.state_dict().values())


def test_projections_start_uniform_as_xavier_says() -> None:
    made = Attention(AttentionSpec.gqa(64, 16, 4, head_dim=48, v_head_dim=24, bias="qkvo"))
    for name, into, out in (("q", 64, 768), ("k", 64, 192), ("v", 64, 96), ("o", 384, 64)):
        values, bound = getattr(made, name).detach(), math.sqrt(6 / (into + out))
        assert bound * 0.99 < values.abs().max() <= bound
        assert values.var().sqrt() == pytest.approx(bound / math.sqrt(3), rel=0.05)
    assert not any(getattr(made, f"{name}_bias").any() for name in "qkvo")


@pytest.mark.parametrize("name", ["norm_head", "norm_each_head", "norm_full_after", "mla", "linear_gated_delta"])
def test_norms_start_as_gains_of_one(name: str) -> None:
    made = Attention(SPECS[name])
    found = [value for key, value in made.named_parameters() if key.endswith("norm_weight")]
    assert found
    for value in found:
        assert (value == (0 if name == "norm_head" else 1)).all()  # stored as 1 + w there


def test_a_layer_starts_the_same_from_the_same_seed() -> None:
    torch.manual_seed(3)
    one = Attention(SPECS["linear_gated_delta"])
    torch.manual_seed(3)
    two = Attention(SPECS["linear_gated_delta"])
    assert all((a == b).all() for a, b in zip(one.parameters(), two.parameters(), strict=True))
    assert (one.decay_rate.exp() >= 1).all()
    assert (one.decay_rate.exp() <= 16).all()


def test_state_dict_goes_round() -> None:
    made, other = layer("norm_full_after", seed=1), layer("norm_full_after", seed=2)
    other.load_state_dict(made.state_dict())
    assert (made(tokens(2, 3)) == other(tokens(2, 3))).all()


def test_canonical_weights_are_loaded_whole_or_not_at_all() -> None:
    made, other = layer("mha", seed=1), layer("mha", seed=2)
    canonical = {weight.name: getattr(made, parameter_name(weight)) for weight in weights(made.spec)}
    assert "q.bias" in canonical
    other.load(canonical)
    assert (made(tokens(2, 3)) == other(tokens(2, 3))).all()
    with pytest.raises(SpecError, match=r"has 8 weights; missing: q\.bias; unknown: q_bias"):
        other.load({key.replace("q.bias", "q_bias"): value for key, value in canonical.items()})
    with pytest.raises(SpecError, match=r"q must be \(h q m\) \(3, 8, 20\), found \(24, 20\)"):
        other.load(canonical | {"q": made.q.flatten(0, 1)})


def test_the_layer_prints_its_spec() -> None:
    made = layer("window")
    inside = str(made).removeprefix("Attention(").removesuffix(")")
    assert parse(inside) == made.spec
