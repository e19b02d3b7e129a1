"""Entries are found by key in either case, and by words wherever they occur."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyheads.errors import ManyheadsError
from manyheads.facts import UnknownFactError, entry, fact, search
from manyheads.facts.library import entries, facts


def keys(words: str) -> list[str]:
    return [each.key for each in search(words)]


def test_a_key_in_either_case() -> None:
    assert fact("a38") is fact("A38")
    assert entry("f6").key == "F6"
    assert entry("Vaswani-Heads").key == "vaswani-heads"


@pytest.mark.parametrize(
    ("key", "near"), [("A380", "A38"), ("A99", "A9"), ("vaswani-head", "vaswani-heads"), ("F6", "F6")]
)
def test_an_unknown_key_names_the_nearest(key: str, near: str) -> None:
    with pytest.raises(UnknownFactError) as raised:
        fact(key)
    assert near in raised.value.nearest
    assert near in str(raised.value)
    assert isinstance(raised.value, ManyheadsError)


def test_all_words_must_occur() -> None:
    assert set(keys("pruning initialisation")) < set(keys("pruning"))
    assert keys("pruning initialisation")[0] == "A51"
    assert keys("pruning zebra") == []


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("335,544,320,000", "A26"),
        ("335544320000", "A26"),
        ("rows (A) number of heads experiment", "A7"),
        ("BLEU 41.29", "A38"),
        ("boolean mask", "A31"),
        ("polarity of MASKS", "C1"),
        ("label smoothing", "A71"),
        ("shazeer cost", "shazeer-cost"),
    ],
)
def test_what_one_looks_for_comes_first(words: str, first: str) -> None:
    assert keys(words)[0] == first


@pytest.mark.parametrize(
    ("one", "many"), [("mask", "masks"), ("bias", "biases"), ("query", "queries"), ("Head", "HEADS")]
)
def test_plural_and_case_make_no_difference(one: str, many: str) -> None:
    assert keys(one)
    assert keys(one) == keys(many)


def test_accents_make_no_difference() -> None:
    assert keys("Lebron") == keys("Lebrón") != []


def test_the_authors_of_a_source_find_what_cites_it() -> None:
    cites = {each.key for each in entries() if any(citation.source == "clark2019" for citation in each.sources)}
    assert set(keys("Khandelwal")) == cites != set()


def test_the_claim_counts_more_than_the_remark() -> None:
    found = keys("softmax")
    in_claim = [each.key for each in facts() if "softmax" in each.claim]
    assert set(found[: len(in_claim)]) <= {*in_claim, "F25"}


@pytest.mark.parametrize("words", ["", "   ", "...", "§§"])
def test_no_word_finds_nothing(words: str) -> None:
    assert search(words) == ()


@given(st.text(max_size=40))
def test_any_text_can_be_looked_for(words: str) -> None:
    assert set(search(words)) <= set(entries())


@pytest.mark.parametrize("each", facts(), ids=lambda each: each.key)
def test_every_claim_is_found_by_its_own_words(each) -> None:
    assert each.key in keys(each.claim)
