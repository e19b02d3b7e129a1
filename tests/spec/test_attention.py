"""AttentionSpec: what can be said, and what is refused with both numbers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import time

import pytest
from hypothesis import given

import manyheads.spec as spec_room
from manyheads.errors import SpecError
from manyheads.spec import (
    Alibi,
    AttentionSpec,
    Band,
    Bias,
    Bidirectional,
    Borrowed,
    Causal,
    Chunk,
    Cross,
    DynamicScaling,
    Heads,
    Latent,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Mlp,
    NoPositions,
    Norm,
    QKNorm,
    RelativeBuckets,
    Rope,
    StackSpec,
    State,
    Weight,
    Window,
    YarnScaling,
    weights,
)
from support.strategies import attention_specs, models

BASE = AttentionSpec.mha(512, 8)
LATENT = AttentionSpec.mla(64, 4, rank=16, nope_dim=8, rope_dim=4, v_head_dim=6)
STATE = AttentionSpec.linear(64, 4)


def complaint(make: object, *words: object, **named: object) -> str:
    with pytest.raises(SpecError) as caught:
        make(*words, **named)  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


@given(attention_specs() | models())
def test_specs_are_frozen_hashable_and_equal_by_value(spec: AttentionSpec | StackSpec) -> None:
    again = copy.deepcopy(spec)
    assert again == spec
    assert hash(again) == hash(spec)
    assert pickle.loads(pickle.dumps(spec)) == spec
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.context = 3  # type: ignore[misc, union-attr]


def test_every_public_class_is_frozen() -> None:
    kinds = [getattr(spec_room, name) for name in spec_room.__all__]
    classes = [kind for kind in kinds if isinstance(kind, type)]
    assert len(classes) > 25
    for kind in classes:
        assert dataclasses.is_dataclass(kind)
        with pytest.raises(dataclasses.FrozenInstanceError):
            object.__new__(kind).anything = 1
        assert kind.__doc__


def test_constructors_recover_the_textbook() -> None:
    assert (
        AttentionSpec(
            d_model=512, num_heads=8, kv=Heads(8, 64, 64), positions=NoPositions(), mask=Causal(), scale=0.125
        )
        == BASE
    )
    assert AttentionSpec.gqa(4096, 32, 8).kv == Heads(8, 128, 128)
    assert AttentionSpec.mqa(2048, 8, head_dim=256).kv == Heads(1, 256, 256)
    assert LATENT.kv == Latent(16, 8, 4, 6, 0, Norm())
    assert LATENT.positions == Rope(4, 1e4, "interleaved")
    assert (LATENT.head_dim, LATENT.scale) == (12, 12**-0.5)
    assert STATE.kv == State(4, 4, 4, 16, 16, 16)
    schemes = [s.scheme for s in (BASE, AttentionSpec.gqa(8, 4, 2), AttentionSpec.mqa(8, 4), LATENT, STATE)]
    assert schemes == ["mha", "gqa", "mqa", "mla", "linear"]


@pytest.mark.parametrize(("d_model", "num_heads"), [(512, 6), (10, 3), (4, 8)])
def test_heads_that_do_not_divide_the_width(d_model: int, num_heads: int) -> None:
    message = complaint(AttentionSpec.mha, d_model, num_heads)  # cases O42 and O43
    assert str(d_model) in message
    assert str(num_heads) in message
    assert "head_dim" in message


def test_head_counts_that_would_divide_are_named() -> None:
    assert "4 or 8 heads" in complaint(AttentionSpec.mha, 512, 6)


def test_head_counts_are_looked_for_only_nearby() -> None:
    started = time.process_time()
    assert "or 1 head" in complaint(AttentionSpec.mha, 2**40 - 87, 10**9)  # a prime width: a full search takes minutes
    assert "give head_dim" in complaint(AttentionSpec.mha, 3, 10**9)
    assert time.process_time() - started < 5


def test_an_explicit_head_dim_lifts_divisibility() -> None:
    spec = AttentionSpec.mha(1023, 8, head_dim=25)  # case O41
    out = next(w for w in weights(spec) if w.name == "o")
    assert out.sizes == {"m": 1023, "y": 8, "v": 25}
    wide = AttentionSpec.mha(4096, 24, head_dim=128)  # case O39: q_proj is 3072 x 4096
    assert next(w for w in weights(wide) if w.name == "q").elements == 3072 * 4096


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"kv": Heads(3, 64, 64)}, ["8", "3", "multiple"]),
        ({"d_model": 0}, ["d_model", "0"]),
        ({"d_model": -5}, ["d_model", "-5"]),
        ({"d_model": 2**40 + 1}, ["d_model", str(2**40), str(2**40 + 1)]),
        ({"d_model": 10**5000}, ["d_model", "too large to print"]),
        ({"d_model": 512.0}, ["d_model", "integer", "512.0"]),
        ({"d_model": True}, ["d_model", "integer", "True"]),
        ({"d_model": "512"}, ["d_model", "integer", "'512'"]),
        ({"num_heads": None}, ["num_heads", "None"]),
        ({"kv": None}, ["kv", "Heads", "None"]),
        ({"positions": "rope"}, ["positions", "Rope", "'rope'"]),
        ({"mask": None}, ["mask", "Causal", "None"]),
        ({"source": Causal()}, ["source", "Borrowed"]),
        ({"bias": "qkv"}, ["bias", "Bias", "'qkv'"]),
        ({"scale": 0}, ["scale", "above 0", "0"]),
        ({"scale": float("nan")}, ["scale", "nan"]),
        ({"scale": float("inf")}, ["scale", "inf"]),
        ({"scale": 10**400}, ["scale", "finite"]),
        ({"scale": None}, ["scale", "None"]),
        ({"softcap": -1.0}, ["softcap", "-1.0"]),
        ({"sinks": 1}, ["sinks", "1"]),
        ({"output_gate": "yes"}, ["output_gate", "'yes'"]),
        ({"qk_norm": Norm()}, ["qk_norm", "QKNorm"]),
        ({"positions": Rope(66)}, ["66", "64"]),
        ({"source": Cross(100)}, ["Bidirectional", "Causal"]),
    ],
)
def test_refused_with_what_was_found(change: dict[str, object], parts: list[str]) -> None:
    message = complaint(dataclasses.replace, BASE, **change)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("spec", "change", "parts"),
    [
        (LATENT, {"positions": Rope(6)}, ["6", "4"]),
        (LATENT, {"positions": NoPositions()}, ["0", "4"]),
        (LATENT, {"bias": Bias(k=True)}, ["k and v"]),
        (LATENT, {"qk_norm": QKNorm()}, ["Heads", "Latent"]),
        (LATENT, {"source": Borrowed(0)}, ["Heads", "Latent"]),
        (STATE, {"num_heads": 6}, ["6", "4", "divide"]),
        (STATE, {"softcap": 3.0}, ["softmax"]),
        (STATE, {"sinks": True}, ["softmax"]),
        (STATE, {"mask": Window(3)}, ["Window(keys=3)"]),
        (STATE, {"positions": Alibi()}, ["Alibi", "logits"]),
        (STATE, {"positions": RelativeBuckets(32, 128, False)}, ["RelativeBuckets"]),
        (STATE, {"positions": Rope(18)}, ["18", "16"]),
        (STATE, {"source": Cross(3), "mask": Bidirectional()}, ["memory"]),
        (STATE, {"source": Borrowed(1)}, ["Heads", "State"]),
        (STATE, {"qk_norm": QKNorm()}, ["State"]),
    ],
)
def test_refused_by_what_the_scheme_cannot_be(spec: AttentionSpec, change: dict[str, object], parts: list[str]) -> None:
    message = complaint(dataclasses.replace, spec, **change)
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("make", "words", "parts"),
    [
        (Heads, (0, 1, 1), ["num_kv_heads", "0"]),
        (Heads, (1, 0, 1), ["head_dim", "0"]),
        (Heads, (1, 1, 0), ["v_head_dim", "0"]),
        (Latent, (0, 1, 0, 1), ["rank", "0"]),
        (Latent, (1, 1, -2, 1), ["rope_dim", "-2"]),
        (Latent, (1, 1, 0, 1, -1), ["q_rank", "-1"]),
        (Latent, (1, 1, 0, 1, 0, "rms"), ["latent norm", "'rms'"]),
        (State, (4, 3, 8, 2, 2, 2), ["8", "num_value_heads 3"]),
        (State, (3, 4, 8, 2, 2, 2), ["8", "num_key_heads 3"]),
        (State, (1, 1, 1, 2, 3, 2), ["elu+1", "3", "2", "learned"]),
        (State, (1, 1, 1, 2, 2, 2, "exp"), ["exp", "identity"]),
        (State, (1, 1, 1, 2, 2, 2, "relu", True, "gated"), ["gated", "none"]),
        (State, (1, 1, 1, 2, 2, 2, "relu", True, "sum", "per_head"), ["sum", "per_head"]),
        (State, (1, 1, 1, 2, 2, 2, "relu", True, "delta"), ["delta", "beta"]),
        (State, (1, 1, 1, 2, 2, 2, "relu", True, "sum", "none", "scalar"), ["sum", "scalar"]),
        (Window, (0,), ["window", "1", "0"]),  # case O57: never a mask that hides everything
        (Window, (None,), ["window", "None"]),
        (Band, (-1,), ["radius", "-1"]),
        (Chunk, (0,), ["chunk", "0"]),
        (Cross, (0,), ["d_memory", "0"]),
        (Borrowed, (-1,), ["-1"]),
        (Norm, ("batch",), ["batch", "rms", "layer"]),
        (Norm, ("rms", 0.0), ["eps", "0.0"]),
        (Norm, ("rms", 1e-6, "2w"), ["2w", "1+w"]),
        (Norm, ("rms", 1e-6, "w", 1), ["shift", "1"]),
        (QKNorm, (Norm(), "heads"), ["heads", "each_head"]),
        (QKNorm, (Norm(), "head", "after"), ["after", "after_rope"]),
        (QKNorm, (None,), ["None", "Norm"]),
        (Rope, (3,), ["even", "3"]),
        (Rope, (0,), ["rope dim", "0"]),
        (Rope, (4, 0.0), ["base", "0.0"]),
        (Rope, (4, 1e4, "pairs"), ["pairs", "halves"]),
        (Rope, (4, 1e4, "halves", None), ["scaling", "None"]),
        (Rope, (4, 1e4, "halves", LongRopeScaling(8, (1.0,), (1.0,))), ["2 factors", "4", "1"]),
        (LongRopeScaling, (8, (1.0,), (1.0, 2.0)), ["1", "2"]),
        (LongRopeScaling, (8, [1.0], (1.0,)), ["short_factor", "tuple"]),
        (LongRopeScaling, (8, (1.0,), None), ["long_factor", "None"]),
        (LongRopeScaling, (8, (0.0,), (1.0,)), ["factor", "0.0"]),
        (LinearScaling, (0,), ["factor", "0"]),
        (DynamicScaling, (2.0, 0), ["original_context", "0"]),
        (Llama3Scaling, (8.0, 1.0, float("nan"), 8192), ["high_freq_factor", "nan"]),
        (YarnScaling, (40.0, 4096, 32.0, 0.0), ["beta_slow", "0.0"]),
        (YarnScaling, (40.0, 4096, 32.0, 1.0, -1.0), ["mscale", "-1.0"]),
        (RelativeBuckets, (1, 128, False), ["num_buckets", "2", "1"]),
        (RelativeBuckets, (32, 128, None), ["two_sided", "None"]),
        (Mlp, (0,), ["width", "0"]),
        (Bias, ("q",), ["bias q", "'q'"]),
        (Bias.of, ("qq",), ["qq"]),
        (Bias.of, ("x",), ["x", "o"]),
    ],
)  # fmt: skip
def test_parts_are_refused_with_what_was_found(make: object, words: tuple[object, ...], parts: list[str]) -> None:
    message = complaint(make, *words)
    for part in parts:
        assert part in message


def test_bias_letters() -> None:
    assert Bias.of("vq") == Bias(q=True, v=True)
    assert Bias.of("vq").letters == "qv"
    assert Bias.of("") == Bias()


def test_a_weight_says_its_sizes() -> None:
    weight = Weight("k", "k q m", (2, 3, 5), "attention")
    assert weight.elements == 30
    assert weight.sizes == {"k": 2, "q": 3, "m": 5}
