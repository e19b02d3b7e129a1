"""price: the object that programs read, and the tables made from it."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from manyheads.cost.pricing import price
from manyheads.errors import SpecError
from manyheads.facts.hardware import find_hardware
from manyheads.report.jsonform import dumps
from manyheads.report.text import render
from manyheads.spec.text import parse, parse_stack

ROOT = Path(__file__).parents[2]
LLAMA_2_70B = "gqa(8192, 64/8x128, rope=1e4) + mlp(28672, gated) x 80; vocab=32000"


def data_of(text: str, **options) -> dict:
    return json.loads(dumps(price(parse_stack(text), **options)))


@pytest.fixture(scope="module")
def llama() -> dict:
    return data_of(
        LLAMA_2_70B, context=[8192, 128_000], what_if=["mha", "mla:512+64"], hardware=find_hardware("h100"),
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


def keys_of(value) -> set[str]:
    if isinstance(value, dict):
        return set(value).union(
            *(keys_of(v) for k, v in value.items() if k not in ("details", "peak_flops_per_second"))
        )
    return set().union(*map(keys_of, value)) if isinstance(value, list) else set()


def test_every_key_is_documented(llama):
    text = (ROOT / "docs" / "cost-json.md").read_text(encoding="utf-8")
    documented = {part for name in re.findall(r"`([a-z_.\[\]]+)`", text) for part in re.split(r"[.\[\]]+", name)}
    assert keys_of(llama) <= documented


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
    one, many = (data_of(LLAMA_2_70B, context=1000, batch=batch)["decode"] for batch in (1, 16))
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
        (130 * 10**9, "--kv-dtype"),
        (100 * 10**9, "--weight-dtype"),
        (30 * 10**9, "--tensor-parallel"),
    ],
)
def test_the_one_change_that_would_make_it_fit(budget, change):
    """128,000 tokens of Llama-2-70B: 137.95 GB of weights and 41.94 GB of cache, here with 4 sequences of 1,000."""
    own = data_of(LLAMA_2_70B, context=128_000, memory=budget + 45 * 10**9 if change == "--kv-dtype" else budget)[
        "memory"
    ]
    if own["fits"]:
        pytest.fail("the budget was meant to be too small")
    assert own["change"].startswith(change)
    assert int(re.search(r"([\d,]+) B$", own["change"])[1].replace(",", "")) <= own["budget_bytes"]


def test_encoder_alone_has_no_cache_and_no_decode():
    from manyheads.spec import AttentionSpec, Bidirectional, Block, Mlp, Stack, StackSpec

    block = Block((AttentionSpec.mha(768, 12, mask=Bidirectional()),), Mlp(3072))
    own = json.loads(dumps(price(StackSpec((Stack("encoder", 768, (block,) * 12, position_rows=512),)))))
    assert own["kv_cache"]["bytes"] == own["decode"]["bytes_per_step"] == 0
    assert own["engines"] == []
    assert own["context"] == 512


def test_text_has_a_table_for_every_question_and_fits_80_columns(llama):
    report = price(
        parse_stack(LLAMA_2_70B), context=[8192, 128_000], what_if=["mha"], hardware=find_hardware("h100"),
        memory=10**9, tensor_parallel=16, name="llama",
    )  # fmt: skip
    out = io.StringIO()
    render(report, file=out, width=80, color=False)
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
        ({"context": -1}, "context"),
        ({"batch": 0}, "batch"),
        ({"kv_dtype": "fp7"}, "fp7"),
        ({"weight_dtype": ""}, "dtype"),
        ({"tensor_parallel": 7}, "64 query heads"),
        ({"what_if": ["gqa:7"]}, "64"),
        ({"what_if": ["nonsense"]}, "nonsense"),
    ],
)
def test_bad_requests(options, message):
    with pytest.raises(SpecError, match=message):
        price(parse_stack(LLAMA_2_70B), **options)
