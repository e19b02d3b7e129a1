"""File names of layers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.spec import AttentionSpec, parse, slug
from manyheads.spec.slugs import LONGEST_SLUG
from support.strategies import attention_specs


@given(attention_specs())
def test_a_slug_is_a_portable_file_name(spec: AttentionSpec) -> None:
    name = slug(spec)
    assert re.fullmatch(r"[a-z][a-z0-9.-]*[a-z0-9]", name)
    assert len(name) <= LONGEST_SLUG == 80
    assert slug(spec) == name


@given(st.lists(attention_specs(), unique=True, min_size=2, max_size=8))
def test_different_layers_have_different_slugs(specs: list[AttentionSpec]) -> None:
    assert len({slug(spec) for spec in specs}) == len(specs)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gqa(4096, 32/8x128, rope=1e4)", "gqa-4096-32-8x128-rope1e4"),
        ("mha(512, 8x64)", "mha-512-8x64"),
        ("gqa(4096, 32/8x128, rope=1e4, window=4096, bias=qkv)", "gqa-4096-32-8x128-rope1e4-window4096-biasqkv"),
        ("mla(7168, 128x128+64, rank=512, v=128, q_rank=1536, rope=1e4)",
         "mla-7168-128x128-64-rank512-v128-qrank1536-rope1e4"),
        ("mha(512, 8x64, bidirectional, scale=0.5, sinks)", "mha-512-8x64-bidirectional-scale0.5-sinks"),
    ],
)  # fmt: skip
def test_readable(text: str, name: str) -> None:
    assert slug(parse(text)) == name


def test_what_is_left_out_still_tells_layers_apart() -> None:
    names = {slug(parse(f"mha(512, 8x64, rope=1e4, rope_scaling=linear({factor}))")) for factor in range(2, 50)}
    assert len(names) == 48
    assert all(name.startswith("mha-512-8x64-rope1e4-") for name in names)


def test_equal_layers_have_one_slug_however_numbers_are_spelt() -> None:
    spelt = [AttentionSpec.gqa(512, 8, 8, softcap=softcap) for softcap in (10000, 10000.0)]
    assert spelt[0] == spelt[1]
    assert slug(spelt[0]) == slug(spelt[1]) == "mha-512-8x64-softcap1e4"
