"""The detectors on attention that is written by hand: what each must find, and what none may."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.heads.detectors import (  # noqa: E402
    OFFSETS,
    TEXT_MEASURES,
    Vocabulary,
    against_others,
    against_others_at,
    against_random_keys,
    measure_text,
    vocabulary,
)
from manyheads.heads.watching import Look  # noqa: E402

T = 12
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
ALL = torch.ones(1, 1, T, T, dtype=torch.bool)
IDS = torch.tensor([[5, 6, 7, 9, 6, 5, 8, 9, 6, 4, 3, 9]])  # 9 is a delimiter, 3 and 4 come once
WORDS = Vocabulary(frozenset({9}), frozenset({3, 4}))


def causal_rows(rule) -> torch.Tensor:
    """(1, 1, T, T) with all the weight of each query on the key that `rule` names, or the first where that is not visible."""
    rows = torch.zeros(1, 1, T, T)
    for query in range(T):
        key = rule(query)
        rows[0, 0, query, key if 0 <= key <= query else 0] = 1.0
    return rows


def uniform(visible: torch.Tensor) -> torch.Tensor:
    return visible.float() / visible.float().sum(-1, keepdim=True)


def measured(weights: torch.Tensor, visible: torch.Tensor = CAUSAL) -> dict[str, tuple[float, float]]:
    look = Look(weights, visible, "", IDS, IDS)
    found = measure_text(look, words=WORDS, rows=slice(0, T))
    return {name: tuple(found[0, 0, at].tolist()) for at, name in enumerate(TEXT_MEASURES)}


def test_a_head_of_the_previous_token() -> None:
    found = measured(causal_rows(lambda query: query - 1))
    score, null = found["mass -1"]
    assert score == 1.0
    # an even spread would give more: 1/2 where two keys are visible, 1/3 where three are, to 1/12
    assert null == pytest.approx(sum(1 / seen for seen in range(2, 13)) / 11)
    assert found["peak -1"] == found["mass -1"]
    assert found["mass -2"][0] == 0.0
    assert all(torch.isnan(torch.tensor(found[f"mass {offset:+d}"][0])) for offset in range(1, 9))  # nobody sees ahead


def test_a_sink_proves_nothing_about_the_pair() -> None:
    """Everyone looks at key 3, its successor too: the weight at offset -1 is there, and the control takes it all away."""
    pattern = torch.zeros(T, T, dtype=torch.bool)
    pattern[4, 3] = True
    score, null = against_others(causal_rows(lambda query: 3), CAUSAL, pattern)
    assert (score.item(), null.item()) == (1.0, 1.0)


@pytest.mark.parametrize("visible", [CAUSAL, ALL])
def test_a_head_that_looks_everywhere_plays_no_role(visible: torch.Tensor) -> None:
    """Case O93: however large the set of keys, its share is what it would get by chance."""
    weights = uniform(visible)
    everything = torch.ones(1, T, dtype=torch.bool)
    score, null = against_random_keys(weights, visible, everything)
    assert score.item() == pytest.approx(null.item())
    for name, (one, other) in measured(weights, visible).items():
        if name.startswith("peak") or one != one:
            continue  # of equal weights the first is the peak
        assert one - other < 1e-6, name


def test_all_keys_are_no_pattern() -> None:
    score, _ = against_others(uniform(ALL), ALL, ALL)
    assert torch.isnan(score).all()  # nobody is left to compare with


def test_random_keys_by_hand() -> None:
    visible = torch.ones(1, 1, 1, 5, dtype=torch.bool)
    weights = torch.tensor([[[[0.2, 0.5, 0.1, 0.1, 0.1]]]])
    score, null = against_random_keys(weights, visible, torch.tensor([[True, True, False, False, False]]))
    assert score.item() == pytest.approx(0.5)  # the first key does not count
    assert null.item() == pytest.approx(0.8 / 4)  # one of the four keys of the 0.8 that is left


def test_delimiters_rare_tokens_and_duplicates() -> None:
    last = {q: max((k for k in range(q + 1) if IDS[0, k] == 9), default=-1) for q in range(T)}
    assert measured(causal_rows(lambda query: last[query]))["delimiter"][0] == 1.0
    once = {q: max((k for k in range(q + 1) if int(IDS[0, k]) in (3, 4)), default=-1) for q in range(T)}
    assert measured(causal_rows(lambda query: once[query]))["rare token"][0] == 1.0
    before = {q: max((k for k in range(q) if IDS[0, k] == IDS[0, q]), default=-1) for q in range(T)}
    score, null = measured(causal_rows(lambda query: before[query]))["duplicate token"]
    assert score == 1.0
    assert null < 0.25
    assert measured(causal_rows(lambda query: query))["duplicate token"][0] == 0.0  # oneself is no duplicate


def test_the_first_token_against_the_second() -> None:
    assert measured(causal_rows(lambda query: 0))["first token"] == (1.0, 0.0)
    assert measured(causal_rows(lambda query: min(query, 1)))["first token"] == (0.0, 1.0)


def test_cross_attention_is_read_against_the_source() -> None:
    source, target = torch.tensor([[5, 6, 7, 8]]), torch.tensor([[1, 7, 6, 5]])
    weights = torch.zeros(1, 1, 4, 4)
    for query, key in enumerate((0, 2, 1, 0)):
        weights[0, 0, query, key] = 1.0
    look = Look(weights, torch.ones(1, 1, 4, 4, dtype=torch.bool), "cross", target, source)
    found = measure_text(look, words=WORDS, rows=slice(0, 2))
    assert found[0, 0, TEXT_MEASURES.index("duplicate token"), 0] == 1.0


@pytest.mark.parametrize(
    "visible", [ALL, CAUSAL, torch.rand(2, 1, T, T, generator=torch.Generator().manual_seed(1)) > 0.4]
)
def test_along_diagonals_as_over_the_whole_matrix(visible: torch.Tensor) -> None:
    weights = torch.rand(2, 3, T, T, generator=torch.Generator().manual_seed(0)) * visible
    places = torch.arange(T)
    for offset, pair in zip(OFFSETS, against_others_at(weights, visible, OFFSETS), strict=True):
        whole = against_others(weights, visible, places - places[:, None] == offset)
        for one, other in zip(pair, whole, strict=True):
            assert torch.allclose(one, other.expand(2, 3), atol=1e-6, equal_nan=True)


def test_what_counts_as_a_delimiter_and_as_rare() -> None:
    names = {1: ".", 2: " ,", 3: "\n\n", 4: "cat", 5: " ", 6: "'s", 7: "dog", 8: '."'}

    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return names[ids[0]]

    found = vocabulary(Tokenizer(), [1, 2, 3, 4, 4, 5, 6, 7, 8], marks=(90,))
    assert found.delimiters == {1, 2, 3, 8, 90}
    assert found.rare == {5, 6, 7}
