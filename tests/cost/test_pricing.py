"""price: the object that programs read, and the tables made from it."""

from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.cost.pricing import price
from manyheads.cost.tables import report, title
from manyheads.errors import SpecError
from manyheads.facts.hardware import find_hardware
from manyheads.report.jsonform import as_json, dumps
from manyheads.report.text import render
from manyheads.spec import StackSpec
from manyheads.spec.text import parse, parse_stack
from support.strategies import models

LLAMA_2_70B = "gqa(8192, 64/8x128, rope=1e4) + mlp(28672, gated) x 80; vocab=32000"


def data_of(text: str, **options) -> dict:
    return json.loads(dumps(report(price(parse_stack(text), **options))))


@pytest.fixture(scope="module")
def llama() -> dict:
    return data_of(
        LLAMA_2_70B, context_tokens=[8192, 128_000], what_if=["mha", "mla:512+64"], hardware=find_hardware("h100"),
        memory=80 * 10**9, tensor_parallel=8,
    )  # fmt: skip


def test_the_keys_that_are_promised(llama):
    assert llama["schema"] == "manyheads.cost/1"
    assert llama["spec"] == "gqa(8192, 64/8x128, rope=1e4)"
    assert parse(llama["spec"]).num_heads == 64
    assert llama["layers"] == 80
    assert llama["parameters"]["total"] == 68_976_648_192
    assert llama["parameters"]["attention"] == 80 * 150_994_944
    assert llama["kv_cache"]["bytes_per_token"] == llama["kv_cache"]["marginal_bytes_per_token"] == 327_680
    assert llama["kv_cache"]["bytes"] == 41_943_040_000
    assert llama["score_bytes_per_layer"] == 64 * 128_000**2 * 2
    decode = llama["decode"]
    parts = ("weight_bytes", "cache_read_bytes", "cache_write_bytes", "state_bytes")
    assert decode["bytes_per_token"] == decode["bytes_per_step"] == sum(decode[part] for part in parts)
    assert {engine["engine"] for engine in llama["engines"]} >= {"transformers DynamicCache", "vLLM", "llama.cpp"}


def test_what_if_items_have_the_same_keys_plus_name(llama):
    assert [item["name"] for item in llama["what_if"]] == ["mha", "mla:512+64"]
    for item in llama["what_if"]:
        assert set(item) == {*llama, "name"}
        assert item["what_if"] == []
    assert llama["what_if"][0]["kv_cache"]["bytes"] == 335_544_320_000


def test_everything_numeric_is_exact(llama):
    for key, value in walk(llama):
        if key.endswith(("bytes", "macs", "tokens", "_exact", "_dense")) and value is not None:
            assert type(value) is int, key


def walk(value):
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)


def test_decode_shares_its_weights_over_the_batch():
    one, many = (data_of(LLAMA_2_70B, context_tokens=1000, batch=batch)["decode"] for batch in (1, 16))
    assert many["weight_bytes"] == one["weight_bytes"] + 15 * 8192 * 2
    assert many["cache_read_bytes"] == 16 * one["cache_read_bytes"]
    assert many["bytes_per_token"] == -(-many["bytes_per_step"] // 16)


def test_roofline_of_llama_on_an_h100(llama):
    """Decode is bound by memory: bytes a step over 3.35 TB/s; the prior doubles it."""
    decode = llama["hardware"]["decode"]
    assert decode["bound_by"] == "memory"
    assert decode["low_seconds"] == pytest.approx(llama["decode"]["bytes_per_step"] / 3.35e12)
    assert decode["high_seconds"] == pytest.approx(2 * decode["low_seconds"])
    prefill = llama["hardware"]["prefill"]
    assert prefill["bound_by"] == "compute"
    assert prefill["low_seconds"] == pytest.approx(llama["prefill"]["flops_exact"] / 989.4e12, rel=1e-2)


@pytest.mark.parametrize(
    ("budget", "change"),
    [
        (130 * 10**9, "kv_dtype="),
        (100 * 10**9, "weight_dtype="),
        (30 * 10**9, "tensor_parallel="),
    ],
)
def test_the_one_change_that_would_make_it_fit(budget, change):
    """128,000 tokens of Llama-2-70B: 137.95 GB of weights and 41.94 GB of cache, here with 4 sequences of 1,000."""
    own = data_of(LLAMA_2_70B, context_tokens=128_000, memory=budget + 45 * 10**9 if change == "kv_dtype=" else budget)[
        "memory"
    ]
    if own["fits"]:
        pytest.fail("the budget was meant to be too small")
    assert own["change"].startswith(change)
    assert int(re.search(r"([\d,]+) B$", own["change"])[1].replace(",", "")) <= own["budget_bytes"]


def test_encoder_alone_has_no_cache_and_no_decode():
    from manyheads.spec import AttentionSpec, Bidirectional, Block, Mlp, Stack, StackSpec

    block = Block((AttentionSpec.mha(768, 12, mask=Bidirectional()),), Mlp(3072))
    own = as_json(price(StackSpec((Stack("encoder", 768, (block,) * 12, position_rows=512),))))
    assert own["kv_cache"]["bytes"] == own["decode"]["bytes_per_step"] == 0
    assert own["engines"] == []
    assert own["context"] == 512


def test_text_has_a_table_for_every_question_and_fits_80_columns(llama):
    priced = price(
        parse_stack(LLAMA_2_70B), context_tokens=[8192, 128_000], what_if=["mha"], hardware=find_hardware("h100"),
        memory=10**9, tensor_parallel=16, name="llama",
    )  # fmt: skip
    out = io.StringIO()
    render(report(priced), file=out, width=80, color=False)
    text = out.getvalue()
    for question in (
        "What is its attention?", "How many parameters?", "What must the cache hold", "How does it grow with context?",
        "What do engines really hold?", "What does a step take", "How long on NVIDIA H100", "What does one of 16 ranks hold?",
        "Does one of 16 ranks fit?", "What if it had other heads",
    ):  # fmt: skip
        assert question in text
    assert "80 layers x 128,000 tokens x 8 KV heads x (128 + 128) x 2 B" in text
    assert "41,943,040,000 B" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context_tokens": -1}, "context"),
        ({"context_tokens": 2.0}, "context must be an integer of 1 or more, found 2.0"),
        ({"batch": 0}, "batch"),
        ({"kv_dtype": "fp7"}, "fp7"),
        ({"weight_dtype": ""}, "dtype"),
        ({"kv_dtype": "q8_0/f16/f16"}, "as in q8_0/f16; found 'q8_0/f16/f16'"),
        ({"kv_dtype": "q8_0/"}, "unknown dtype ''"),
        ({"kv_dtype": None}, "a dtype is named by a word, found None"),
        ({"tensor_parallel": 7}, "64 query heads"),
        ({"tensor_parallel": 0}, "tensor_parallel must lie in"),
        ({"tensor_parallel": 2.0}, "tensor_parallel must be an integer"),
        ({"what_if": ["gqa:7"]}, "64"),
        ({"what_if": ["nonsense"]}, "nonsense"),
        ({"what_if": [8]}, "what_if= is a text, found 8"),
    ],
)
def test_bad_requests(options, message):
    with pytest.raises(SpecError, match=message):
        price(parse_stack(LLAMA_2_70B), **options)


def test_one_layer_has_a_price() -> None:
    for text in ("gqa(64, 4/2)", "mha(64, 4, bidirectional)", "gqa(64, 4/2, buckets=32)", "linear(64, 4)"):
        assert price(parse(text), context_tokens=100) == price(parse_stack(text), context_tokens=100)
    assert title(price(parse("gqa(64, 4/2)"))) == "model: 1 layer of gqa(64, 4/2x16)"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("llama-2-70b", "found 'llama-2-70b'; manyheads.read makes one"),
        (None, "a StackSpec or an AttentionSpec has a price, found None"),
        (parse("gqa(64, 4/2, borrowed=3)"), "reads what layer 3 keeps: it has a price within its stack only"),
    ],
)
def test_what_has_no_price(asked: object, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        price(asked)  # type: ignore[arg-type]


def test_cross_attention_alone() -> None:
    """By hand: W_q 96 x 96, W_k and W_v 40 x 48 each, W_o 96 x 96; 30 memory tokens of 3 heads x (16 + 16) in 2 bytes; scores
    of 6 heads x 10 x 30 in 2 bytes.
    """
    own = data_of("gqa(96, 6/3x16, cross=40)", context_tokens=10, source_tokens=30, what_if=["mha", "heads:12"], memory=10**6,
                  hardware=find_hardware("h100"), tensor_parallel=3)  # fmt: skip
    assert own["parameters"]["attention"] == 2 * 96 * 96 + 2 * 40 * 48
    assert own["kv_cache"]["bytes"] == own["kv_cache"]["cross_bytes"] == 30 * 3 * 32 * 2
    assert own["kv_cache"]["bytes_per_token"] == 0
    assert own["score_bytes_per_layer"] == 6 * 10 * 30 * 2
    assert data_of("gqa(96, 6/3x16, cross=40)")["context"] == 4096


@given(
    stack=models(), options=st.fixed_dictionaries({"context_tokens": st.integers(0, 500), "batch": st.integers(1, 3)})
)
def test_every_model_has_a_price(stack: StackSpec, options: dict[str, int]) -> None:
    """Whatever a spec can say is priced and printed; encoders and layers of MLPs alone among them."""
    made = report(price(stack, memory=10**6, what_if=[], **options))
    render(made, file=io.StringIO(), width=80, color=False)
    json.loads(dumps(made))


LLAMA_3_8B = "gqa(4096, 32/8x128, rope=5e5) + mlp(14336, gated) x 32; vocab=128256, context=8192"


def test_keys_and_values_in_formats_of_their_own() -> None:
    """By hand: 32 layers x 8 heads x (128 x 34/32 + 128 x 2) = 100,352 B a token; the other way round the same, and at q4_0/f16
    32 x 8 x (128 x 18/32 + 256) = 83,968.
    """
    own = data_of(LLAMA_3_8B, kv_dtype="q8_0/f16", context_tokens=4096)
    assert own["kv_cache"]["bytes_per_token"] == 100_352
    assert own["kv_cache"]["bytes"] == 4096 * 100_352
    assert (own["kv_dtype"], own["key_dtype"], own["value_dtype"]) == ("q8_0/f16", "q8_0", "fp16")
    assert own["kv_cache"]["product"] == ["32 layers x 4,096 tokens x 8 KV heads x (128 x 34/32 + 128 x 2) B"]
    assert own["decode"]["cache_read_bytes"] == 4096 * 100_352
    assert data_of(LLAMA_3_8B, kv_dtype="f16/q8_0")["kv_cache"]["bytes_per_token"] == 100_352
    assert data_of(LLAMA_3_8B, kv_dtype="q4_0/f16")["kv_cache"]["bytes_per_token"] == 83_968
    same = data_of(LLAMA_3_8B, kv_dtype="q8_0/q8_0")["kv_cache"]
    assert same == data_of(LLAMA_3_8B, kv_dtype="q8_0")["kv_cache"]


def test_engines_that_cannot_keep_it_say_so_in_the_table() -> None:
    out = io.StringIO()
    render(report(price(parse_stack(LLAMA_3_8B), kv_dtype="q8_0/f16")), file=out, width=200, color=False)
    assert "What must the cache hold, in q8_0/f16?" in out.getvalue()
    said = "keeps keys and values in one format, not in q8_0/fp16"
    for names, engine in (("transformers DynamicCache, transformers StaticCache", "transformers"),
                          ("vLLM, vLLM without its hybrid cache manager", "vLLM")):  # fmt: skip
        assert f"left out, {names}: {engine} {said}" in out.getvalue()
    plain = io.StringIO()
    render(report(price(parse_stack(LLAMA_3_8B))), file=plain, width=200, color=False)
    assert "left out, " not in plain.getvalue()


def test_which_format_is_the_keys() -> None:
    """Keys of 8 elements, values of 32, in 4 and 2 bytes; of MLA both lie in the latent, which is kept as keys are; a state is
    kept in the wider of the two.
    """
    apart = "gqa(64, 4/2x8, v=32)"
    assert data_of(apart, kv_dtype="fp32/bf16")["kv_cache"]["bytes_per_token"] == 2 * (8 * 4 + 32 * 2)
    assert data_of(apart, kv_dtype="bf16/fp32")["kv_cache"]["bytes_per_token"] == 2 * (8 * 2 + 32 * 4)
    latent = data_of("mla(64, 4x8+4, rank=16)", kv_dtype="fp32/bf16")["kv_cache"]
    assert latent["bytes_per_token"] == (16 + 4) * 4
    assert latent["expanded_bytes_per_token"] == 4 * (12 * 4 + 8 * 2)
    assert latent["product"] == ["1 layers x 4,096 tokens x (16 latent + 4 rotary) x 4 B"]
    state = 4 * (16 * 16 + 16)
    for formats, each in (("q8_0/f16", 2), ("f16/q8_0", 2), ("fp32/f16", 4)):
        assert data_of("linear(64, 4)", kv_dtype=formats)["kv_cache"]["state_bytes"] == state * each
    lent = data_of("gqa(64, 4/2x8, v=32), gqa(64, 4/2x8, v=32, borrowed=0)", context_tokens=10, kv_dtype="fp32/bf16")
    assert lent["decode"]["cache_read_bytes"] == 2 * 10 * 2 * (8 * 4 + 32 * 2)
    assert lent["decode"]["cache_write_bytes"] == 2 * (8 * 4 + 32 * 2)
