"""The closed forms: every worked value of facts section 4, and one meaning on ints, arrays and symbols."""

from __future__ import annotations

import inspect
import random
from fractions import Fraction

import pytest

from manyheads.cost import formulas

V3 = {"m": 7168, "H": 128, "n": 128, "r": 64, "v": 128, "c": 512, "a": 1536}


def test_deepseek_v3_of_facts_4_3():
    assert formulas.latent_token_macs(**V3, has_q_latent=1) == 187_105_280
    assert formulas.expanded_pair_macs(128, 128, 64, 128) == 40_960
    assert formulas.absorbed_pair_macs(128, 512, 64) == 139_264
    assert formulas.latent_cache_elements(512, 64) == 576
    assert formulas.expanded_tokens_macs(1, 128, 128, 128, 512) == 16_777_216
    assert round(formulas.latent_core_intensity(128, 512, 64, 2), 1) == 241.8
    assert round(formulas.latent_core_intensity(16, 512, 64, 2), 1) == 30.2
    assert round(formulas.absorption_crossover_queries(128, 128, 512), 1) == 170.7
    assert formulas.core_intensity(1, 1, 2) == 1


def test_the_trap_of_expanding_8192_latents_again():
    """The issue of the decode room: 137 GMACs against 1.1 at 8K latent rows."""
    again = formulas.expanded_tokens_macs(8192, 128, 128, 128, 512)
    absorbed = 8192 * formulas.absorbed_pair_macs(128, 512, 64)
    assert round(again / 1e9) == 137
    assert round(absorbed / 1e9, 1) == 1.1


def test_heads_of_facts_4_2():
    """Square MHA: MACs a token 4d², a pair 2d, cache 2d; intensity g in 16 bits."""
    d, heads = 512, 8
    assert formulas.heads_query_macs(d, heads, 64, 64) + formulas.heads_key_macs(d, heads, 64, 64) == 4 * d * d
    assert formulas.heads_pair_macs(heads, 64, 64) == 2 * d
    assert formulas.heads_cache_elements(heads, 64, 64) == 2 * d
    # 32 numbers and their 16-bit scale are a block of ggml's q8_0: 34 bytes.
    assert formulas.int8_part_bytes(heads, 32) == heads * 34
    for group in (1, 8, 32):
        assert formulas.core_intensity(group, 1, 2) == group


def test_cache_outweighs_weights():
    """facts 4.2: 8,192 tokens for a 7B MHA layer, 20,480 for Llama-3-8B, in 16 bits."""
    assert 67_108_864 / formulas.heads_cache_elements(32, 128, 128) == 8_192
    assert 41_943_040 / formulas.heads_cache_elements(8, 128, 128) == 20_480


def test_linear_attention_of_facts_4_4():
    equal = formulas.state_elements(1, 128, 128, 1) / formulas.heads_cache_elements(1, 128, 128)
    assert (equal, 2 * equal) == (64.5, 129.0)  # tokens from which on the state is smaller, in 16 bits and in 32
    assert formulas.state_core_intensity(8, 8, 4) == 0.5
    assert formulas.state_core_intensity(8, 8, 2) == 1.0
    assert formulas.state_elements(4, 16, 8, 0) == 4 * 16 * 8


def test_chunks_of_one_are_the_recurrence_plus_the_pair_inside():
    """A chunk of one token scores and mixes itself, H(f + v), beside its update, read and normaliser."""
    tokens, H, H_s, f, v = 30, 6, 2, 5, 7
    chunked = formulas.state_chunked_macs(tokens, 1, H, H_s, f, v, 1)
    assert chunked == tokens * (formulas.state_recurrent_macs(H, H_s, f, v, 1, 0) + H * (f + v))


def test_seed_numbers():
    """facts B12, B13, B14, B15: 32 heads of 128 at 8,192 and 131,072 tokens, 16 bits."""
    assert 2 * formulas.score_elements(1, 32, 8192, 8192) == 4_294_967_296
    assert 2 * formulas.score_elements(1, 32, 131_072, 131_072) == 2**40
    assert 2 * 8192 * formulas.heads_cache_elements(32, 128, 128) == 134_217_728
    assert 2 * 8192 * formulas.heads_cache_elements(8, 128, 128) == 33_554_432


FLAGS = {"normalised", "delta", "has_q_latent"}


@pytest.mark.parametrize("name", formulas.__all__)
def test_one_meaning_in_three_worlds(name):
    """int = object array = float64 array = symbol with numbers put in, at sizes drawn anew each run from one seed."""
    numpy, sympy = pytest.importorskip("numpy"), pytest.importorskip("sympy")
    formula = getattr(formulas, name)
    names = list(inspect.signature(formula).parameters)
    draw = random.Random(name)
    fixed = {flag: draw.randint(0, 1) for flag in names if flag in FLAGS}
    free = [n for n in names if n not in FLAGS]
    rows = [{n: draw.randint(2, 60) for n in free} for _ in range(5)]
    expected = [Fraction(formula(**row, **fixed)).limit_denominator(10**9) for row in rows]
    exact = formula(**{n: numpy.array([row[n] for row in rows], dtype=object) for n in free}, **fixed)
    assert [Fraction(x).limit_denominator(10**9) for x in exact] == expected
    floats = formula(**{n: numpy.array([row[n] for row in rows], dtype=float) for n in free}, **fixed)
    assert floats == pytest.approx([float(x) for x in expected], rel=1e-12)
    symbols = {n: sympy.Symbol(n, integer=True, positive=True) for n in free}
    symbolic = sympy.sympify(formula(**symbols, **fixed))
    got = [symbolic.subs({symbols[n]: row[n] for n in free}) for row in rows]
    assert [Fraction(int(x.p), int(x.q)) for x in got] == [
        Fraction(formula(**{n: Fraction(row[n]) for n in free}, **fixed)) for row in rows
    ]
