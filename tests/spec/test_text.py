"""The text form of a layer: lossless, forgiving in spelling, exact in its complaints."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import SpecError
from manyheads.spec import (
    AttentionSpec,
    Bidirectional,
    Causal,
    Cross,
    Heads,
    Latent,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    Norm,
    QKNorm,
    RelativeBuckets,
    Rope,
    State,
    Window,
    YarnScaling,
    parse,
    to_text,
)
from manyheads.spec.syntax import LONGEST_TEXT, number_text
from support.strategies import attention_specs


@given(attention_specs())
def test_text_is_lossless(spec: AttentionSpec) -> None:
    text = to_text(spec)
    assert parse(text) == spec
    assert to_text(parse(text)) == text
    assert "\n" not in text


MISTRAL = AttentionSpec.gqa(4096, 32, 8, positions=Rope(128, 1e4), mask=Window(4096))
DEEPSEEK_V3 = AttentionSpec.mla(7168, 128, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128, q_rank=1536)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("gqa(4096, 32/8x128, rope=1e4, window=4096)", MISTRAL),
        ("mha(512, 8x64)", AttentionSpec.mha(512, 8)),
        ("mqa(2048, 8x256, rope=1e4)", AttentionSpec.mqa(2048, 8, positions=Rope(256))),
        ("mla(7168, 128x128+64, rank=512, v=128, q_rank=1536, rope=1e4)", DEEPSEEK_V3),
        ("linear(512, 8x64, map=relu)", AttentionSpec.linear(512, 8, feature_map="relu")),
        ("mha(1024, 128x128, buckets=32, max_distance=128, scale=1)",
         AttentionSpec.gqa(1024, 128, 128, head_dim=128, positions=RelativeBuckets(32, 128, False), scale=1.0)),
        ("mha(512, 8x64, cross=1024)",
         AttentionSpec.gqa(512, 8, 8, source=Cross(1024), mask=Bidirectional())),
        ("gqa(2880, 64/8x64, bias=qkvo, sinks)",
         AttentionSpec.gqa(2880, 64, 8, head_dim=64, bias="qkvo", sinks=True)),
        ("gqa(5120, 40/8x128, qk_norm=rms(gain=1+w, scope=full))",
         AttentionSpec.gqa(5120, 40, 8, qk_norm=QKNorm(Norm(gain="1+w"), "full"))),
        ("gqa(4096, 32/8x128, rope=5e5, rope_scaling=llama3(8, 1, 4, 8192))",
         AttentionSpec.gqa(4096, 32, 8, positions=Rope(128, 5e5, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192)))),
        ("mha(8, 2x4, rope=1e4, rope_scaling=longrope(4096, [1, 1.5], [2, 64]))",
         AttentionSpec.mha(8, 2, positions=Rope(4, scaling=LongRopeScaling(4096, (1.0, 1.5), (2.0, 64.0))))),
        ("mha(8, 2x4, rope=1e4, rope_dim=2, rope_layout=interleaved)",
         AttentionSpec.mha(8, 2, positions=Rope(2, 1e4, "interleaved"))),
    ],
)  # fmt: skip
def test_written_as_documented(text: str, spec: AttentionSpec) -> None:
    assert to_text(spec) == text
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("mha(512, 8)", "mha(512, 8x64)"),
        ("gqa(4096,32/8)", "gqa(4096, 32/8x128)"),
        ("gqa(512, 8/8x64)", "mha(512, 8x64)"),
        ("gqa(512, 8/1x64)", "mqa(512, 8x64)"),
        ("GQA( 4096 , 32/8×128 , ROPE = 10000.0 )", "gqa(4096, 32/8x128, rope=1e4)"),
        ("mha(512, 8x64, rope)", "mha(512, 8x64, rope=1e4)"),
        ("mha(512, 8x64, causal, nope, qk_norm)", "mha(512, 8x64, qk_norm=rms)"),
        ("mha(512, 8x64, window=1e4)", "mha(512, 8x64, window=10000)"),
        ("mla(64, 2x8+4, rank=16)", "mla(64, 2x8+4, rank=16, v=8, rope=1e4)"),
        ("mha(512, 8x64, sinks=no, gate=yes)", "mha(512, 8x64, gate)"),
        ("mha(8, 2x4, rope_scaling=yarn(original_context=64, factor=2, mscale=0), rope=1e4)",
         "mha(8, 2x4, rope=1e4, rope_scaling=yarn(2, 64))"),
    ],
)  # fmt: skip
def test_reads_other_spellings(text: str, same: str) -> None:
    assert to_text(parse(text)) == same


def test_defaults_are_the_papers() -> None:
    spec = parse("mha(512, 8x64)")
    assert spec.kv == Heads(8, 64, 64)
    assert spec.mask == Causal()
    assert spec.positions == NoPositions()
    assert spec.scale == 0.125
    latent = parse("mla(7168, 128x128+64, rank=512, v=128, q_rank=1536)")
    assert latent.kv == Latent(512, 128, 64, 128, 1536)
    assert latent.positions == Rope(64, 1e4, "interleaved")
    assert parse("linear(6, 3/1x5, v=7, value_heads=3)").kv == State(1, 3, 3, 5, 5, 7)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gqa(4096, 32/8x128, windw=4096)", ["character 21", "windw", "did you mean window?", "softcap"]),
        ("gpa(4096, 32/8)", ["gpa", "did you mean gqa?", "mla"]),
        ("gqa(4096, 32x128)", ["gqa", "32/8", "32x128"]),
        ("gqa(4096, 32/7x128)", ["32", "7"]),
        ("mha(512, 6)", ["512", "6"]),
        ("mha(10, 3)", ["10", "3"]),
        ("mqa(512, 8/2x64)", ["mqa", "2", "write gqa"]),
        ("mla(512, 8x64)", ["rank"]),
        ("mla(512, 8, rank=3)", ["HxN+R", "8"]),
        ("mha(512, 8x64+8)", ["mla", "8x64+8"]),
        ("mha(512)", ["d_model and heads"]),
        ("mha(512, 8x64", ["')'", "the end"]),
        ("mha(512 8x64)", ["character 9", "','", "8x64"]),
        ("mha(512, 8x64) mha", ["the end", "mha", "parse_stack"]),
        ("mha(512, 8x64, rope=fast)", ["rope", "number", "fast"]),
        ("mha(512, 8x64, window=2.5)", ["window", "whole", "2.5"]),
        ("mha(512, 8x64, window=0)", ["window", "1", "0"]),
        ("mha(512, 8x64, window=-4)", ["window", "-4"]),
        ("mha(512, 8x64, window)", ["window=..."]),
        ("mha(512, 8x64, window=4, chunk=4)", ["window and chunk"]),
        ("mha(512, 8x64, rope, alibi)", ["rope and alibi"]),
        ("mha(512, 8x64, rope_dim=32)", ["rope_dim", "rope=1e4"]),
        ("mha(512, 8x64, two_sided)", ["two_sided", "buckets"]),
        ("mha(512, 8x64, rope, rope=1e4)", ["rope", "twice"]),
        ("mha(512, 8x64, rope=1e4, rope_scaling=yran(2, 64))", ["yran", "did you mean yarn?"]),
        ("mha(512, 8x64, rope=1e4, rope_scaling=yarn(2))", ["yarn", "original_context"]),
        ("mha(512, 8x64, rope=1e4, rope_scaling=yarn(2, 64, fast=3))", ["fast", "beta_fast"]),
        ("mha(512, 8x64, rope=1e4, rope_scaling=linear(2, 3))", ["3", "factor"]),
        ("mha(512, 8x64, qk_norm=lms)", ["rms", "layer", "lms"]),
        ("mha(512, 8x64, bias=qq)", ["bias", "qq"]),
        ("mha(512, 8x64, sinks=perhaps)", ["sinks", "yes or no", "perhaps"]),
        ("mha(512, 8x64, alibi=no)", ["alibi"]),
        ("linear(512, 8x64, softcap=3)", ["softcap"]),
        ("mha(512, 8x64, scale=1e999)", ["scale", "inf"]),
        ("mha(512, 8x64, softcap=" + "9" * 5000 + ")", ["softcap", "number"]),
        ("mha(99999999999999999999, 8x64)", ["d_model", "99999999999999999999"]),
        ("mha(512, 1x99999999999999999)", ["head_dim", "99999999999999999"]),
        ("mha(512, 8x64, ß)", ["character 16", "ß"]),
        ("mha(512, -8x64)", ["-8x64"]),
        ("", ["empty"]),
        ("   ", ["empty"]),
        ("(", ["character 1", "a layer"]),
        ("mha(512, 8x64, scale=" + "[" * 3000, ["nested", "character"]),
    ],
)
def test_complaints_name_the_place(text: str, parts: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        parse(text)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 600
    for part in parts:
        assert part in message


def test_not_text_and_not_a_layer() -> None:
    with pytest.raises(SpecError, match="must be text"):
        parse(b"mha(512, 8)")  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="Heads"):
        to_text(Heads(1, 2, 3))  # type: ignore[arg-type]


def complaint(text: str) -> str:
    """What `parse` says against `text`, "" where it reads it."""
    try:
        parse(text)
    except SpecError as error:
        return str(error)
    return ""


@given(st.text() | st.text(alphabet="mhagql(),=[]/x+;: 0189e.-ropewinduv_"))
def test_random_text_never_crashes(text: str) -> None:
    assert "\n" not in complaint(text)


@given(attention_specs(), st.data())
def test_damaged_text_never_crashes(spec: AttentionSpec, data: st.DataObject) -> None:
    text = to_text(spec)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 5)))
    damaged = text[:start] + data.draw(st.text(alphabet="(),=[]x/+ 0e_a", max_size=4)) + text[end:]
    assert "\n" not in complaint(damaged)


def test_long_text_is_refused_and_the_longest_read_is_linear() -> None:
    with pytest.raises(SpecError, match=str(LONGEST_TEXT + 1)):
        parse("x" * (LONGEST_TEXT + 1))
    started = time.process_time()
    with pytest.raises(SpecError):
        parse("mha(512, 8x64" + ", sinks" * ((LONGEST_TEXT - 20) // 7))
    with pytest.raises(SpecError):
        parse("x" * LONGEST_TEXT)
    assert time.process_time() - started < 20  # seconds; a quadratic reader would take hours


@given(st.floats(min_value=0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**30))
def test_numbers_read_back_exactly(value: float) -> None:
    text = number_text(value)
    assert float(text) == value if isinstance(value, float) else int(float(text)) == value or int(text) == value


@pytest.mark.parametrize(
    ("value", "text"),
    [(1e4, "1e4"), (10000, "1e4"), (5e5, "5e5"), (150000.0, "1.5e5"), (8.0, "8"), (0.0625, "0.0625"), (1e-6, "1e-6"),
     (1e-5, "1e-5"), (32.0, "32"), (0.0, "0"), (2**60 + 1, "1152921504606846977")],
)  # fmt: skip
def test_numbers_are_short(value: float, text: str) -> None:
    assert number_text(value) == text


def test_yarn_of_deepseek_v3() -> None:
    spec = parse(
        "mla(7168, 128x128+64, rank=512, v=128, q_rank=1536, rope=1e4, scale=0.13523377,"
        " rope_scaling=yarn(40, 4096, mscale=1, mscale_all_dim=1))"
    )
    assert spec.positions == Rope(64, 1e4, "interleaved", YarnScaling(40.0, 4096, mscale=1.0, mscale_all_dim=1.0))
    assert spec.scale == 0.13523377
