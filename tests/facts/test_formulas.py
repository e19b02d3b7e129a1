"""The formulas of the library against enumeration, against the weight inventory, and against the room that prices."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.cost import formulas as cost
from manyheads.cost import pairs
from manyheads.facts import Formula, entry, formulas
from manyheads.facts.arithmetic import SumError
from manyheads.facts.working import run_formula
from manyheads.spec import AttentionSpec
from manyheads.spec.inventory import count, weights

SMALL = st.integers(1, 12)
SIZES = st.integers(1, 10**6)


def run(key: str, **letters: int) -> Fraction:
    return run_formula(entry(key), letters)


@pytest.mark.parametrize("formula", formulas(), ids=lambda formula: formula.key)
def test_the_letters_explained_are_the_letters_used(formula: Formula) -> None:
    text = " ".join([formula.formula, *(meaning for _, meaning in formula.where)])
    used = set(re.findall(r"[A-Za-z]+", text)) - {"min", "max"}
    assert {letter for letter, _ in formula.symbols} == used
    assert all(meaning for _, meaning in formula.symbols)


def test_a_letter_that_is_missing_is_named() -> None:
    with pytest.raises(SumError, match="'K'"):
        run("F6", d=8, H=2, q=4, v=4)


@given(new=SMALL, old=st.integers(0, 12), window=SMALL)
def test_pairs_are_what_counting_gives(new: int, old: int, window: int) -> None:
    queries = range(old, old + new)
    seen = [(i, j) for i in queries for j in range(old + new)]
    causal = [(i, j) for i, j in seen if j <= i]
    assert run("F1", Tq=new, Tk=old + new) == len(seen)
    assert run("F2", Tq=new, Tk=old + new) == len(causal)
    assert run("F3", Tq=new, Tk=old + new, W=window) == len([1 for i, j in causal if i - j < window])


@given(tokens=SMALL, size=SMALL)
def test_pairs_from_scratch_are_what_counting_gives(tokens: int, size: int) -> None:
    places = range(tokens)
    if tokens >= size:
        assert run("F4", T=tokens, W=size) == sum(1 for i in places for j in places if 0 <= i - j < size)
    if tokens >= size + 1:
        assert run("F5", T=tokens, R=size) == sum(1 for i in places for j in places if abs(i - j) <= size)


@given(H=SMALL, g=SMALL, q=SMALL, v=SMALL, d=SMALL)
def test_weights_are_what_the_matrices_hold(H: int, g: int, q: int, v: int, d: int) -> None:
    matrices = [(H * g * q, d), (H * q, d), (H * v, d), (d, H * g * v)]
    assert run("F6", d=d, H=H * g, K=H, q=q, v=v) == sum(rows * columns for rows, columns in matrices)
    assert run("F7", d=d, H=H * g, K=H, q=q, v=v) == sum(rows for rows, _ in matrices)


@pytest.mark.parametrize(
    ("key", "letters", "spec"),
    [
        ("F6", {"d": 24, "H": 6, "K": 2, "q": 5, "v": 5}, AttentionSpec.gqa(24, 6, 2, head_dim=5)),
        ("F20", {"d": 24}, AttentionSpec.mha(24, 6)),
    ],
)
def test_weights_are_those_of_the_inventory(key: str, letters: dict[str, int], spec: AttentionSpec) -> None:
    assert run(key, **letters) == count(weights(spec))


@given(a=SIZES, b=SIZES, c=SIZES, d=SIZES, e=SIZES, g=SIZES, h=SIZES)
def test_the_room_that_prices_has_the_same_formulas(a: int, b: int, c: int, d: int, e: int, g: int, h: int) -> None:
    assert run("F10", d=a, H=b, q=c, v=d) == cost.heads_query_macs(a, b, c, d)
    assert run("F11", d=a, K=b, q=c, v=d) == cost.heads_key_macs(a, b, c, d)
    assert run("F12", H=a, q=b, v=c, P=d) == cost.heads_pair_macs(a, b, c) * d
    assert run("F13", K=a, q=b, v=c, bc=d) == cost.heads_cache_elements(a, b, c) * d
    assert run("F14", B=a, H=b, Tq=c, Tk=d, bx=e) == cost.score_elements(a, b, c, d) * e
    assert run("F24", M=a) == cost.flops(cost.training_macs(a))
    assert run("F31", d=a, m=b, H=c, n=d, r=e, c=g, v=h) == cost.latent_token_macs(a, c, d, e, h, g, b, 1)
    parts = run("F27", d=a, H=c, n=d, r=e) + run("F28", d=a, c=g, r=e) + run("F29", c=g, H=c, n=d, v=h)
    assert parts + run("F30", H=c, v=h, d=a) == cost.latent_token_macs(a, c, d, e, h, g, 0, 0)
    assert run("F26", d=a, m=b, H=c, n=d, r=e) + parts - run("F27", d=a, H=c, n=d, r=e) == (
        run("F31", d=a, m=b, H=c, n=d, r=e, c=g, v=h) - run("F30", H=c, v=h, d=a)
    )
    assert run("F33", H=a, n=b, r=c, v=d) == cost.expanded_pair_macs(a, b, c, d)
    assert run("F34", H=a, c=b, r=c) == cost.absorbed_pair_macs(a, b, c)
    assert run("F35", c=a, r=b) == cost.latent_cache_elements(a, b)
    assert run("F40", S=a, c=b, H=c, n=d, v=e) == cost.expanded_tokens_macs(a, c, d, e, b)
    assert run("F42", Hs=a, H=b, f=c, v=d) == cost.state_recurrent_macs(b, a, c, d, 1, 0)
    assert run("F43", H=a, f=b, v=c, P=d) == cost.state_pair_macs(a, b, c) * d
    assert run("F44", H=a, Hs=b, f=c, v=d, C=e) == cost.state_chunked_macs(1, e, a, b, c, d, 1)
    assert run("F45", Hs=a, f=b, v=c, bs=d) == cost.state_elements(a, b, c, 1) * d


@given(a=SIZES, b=SIZES, c=SIZES, d=SIZES)
def test_ratios_are_those_of_the_room_that_prices(a: int, b: int, c: int, d: int) -> None:
    exact = map(Fraction, (a, b, c, d))
    A, B, C, D = exact
    assert run("F17", g=a, Tq=b, bc=c) == cost.core_intensity(A, B, C)
    assert run("F38", H=a, c=b, r=c, bc=d) == cost.latent_core_intensity(A, B, C, D)
    assert run("F47", H=a, Hs=b, bs=c) == cost.state_core_intensity(A, B, C)
    if 2 * a != b + c:
        assert run("F41", c=a, n=b, v=c) == cost.absorption_crossover_queries(B, C, A)


@given(new=st.integers(1, 10**6), old=st.integers(0, 10**6), window=SIZES)
def test_pairs_are_those_of_the_room_that_prices(new: int, old: int, window: int) -> None:
    assert run("F1", Tq=new, Tk=new + old) == pairs.dense_pairs(new, new + old)
    assert run("F2", Tq=new, Tk=new + old) == pairs.causal(new, new + old)
    assert run("F3", Tq=new, Tk=new + old, W=window) == pairs.windowed(new, new + old, window)


@given(B=SMALL, S=st.integers(0, 99), K=SMALL, g=SMALL, q=SMALL, v=SMALL, w=SIZES)
def test_decode_formulas_hang_together(B: int, S: int, K: int, g: int, q: int, v: int, w: int) -> None:
    """Bytes moved without the write, against intensity; and the crossing where the cache equals the weights."""
    H = K * g
    moved = run("F16", w=w, bw=2, B=B, S=S, K=K, q=q, v=v, bc=2) - B * run("F13", K=K, q=q, v=v, bc=2)
    macs = B * (w + run("F12", H=H, q=q, v=v, P=S))
    assert run("F18", B=B, w=w, H=H, q=q, v=v, S=S, bw=2, K=K, bc=2) == 2 * macs / moved
    crossing = run("F19", w=w, bw=2, K=K, q=q, v=v, bc=2)
    assert crossing * run("F13", K=K, q=q, v=v, bc=2) == 2 * w
