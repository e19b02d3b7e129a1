"""The detectors on attention that is written by hand: what each must find, and what none may."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from manyheads.heads.attention_weights import AttentionWeights  # noqa: E402
from manyheads.heads.roles import TokenKinds, token_kinds  # noqa: E402
from manyheads.heads.roles.text_scores import (  # noqa: E402
    OFFSETS,
    TEXT_MEASURES,
    TokenFigures,
    against_others,
    against_random_keys,
    at_distances,
    measure_text,
    tokens_apart,
)

T = 12
CAUSAL = torch.ones(T, T, dtype=torch.bool).tril()[None, None]
ALL = torch.ones(1, 1, T, T, dtype=torch.bool)
IDS = torch.tensor([[5, 6, 7, 9, 6, 5, 8, 9, 6, 4, 3, 9]])  # 9 is a delimiter, 3 and 4 come once
WORDS = TokenKinds(frozenset({9}), frozenset({3, 4}))


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
    """The score of each measure, and the first thing that it is held against."""
    return {name: values[:2] for name, values in held_against(weights, visible).items()}


def held_against(weights: torch.Tensor, visible: torch.Tensor = CAUSAL) -> dict[str, tuple[float, ...]]:
    look = AttentionWeights(weights, visible, "", IDS, IDS)
    found = measure_text(look, words=WORDS, rows=slice(0, T))
    return {name: tuple(found[0, 0, at].tolist()) for at, name in enumerate(TEXT_MEASURES)}


def test_a_head_of_the_previous_token() -> None:
    found = measured(causal_rows(lambda query: query - 1))
    score, null = found["mass -1"]
    assert score == 1.0
    # an even spread would give more: 1/3 where three keys are visible (the token before and its neighbours), 1/4, to 1/12
    assert null == pytest.approx(sum(1 / seen for seen in range(3, 13)) / 10)
    assert found["peak -1"] == found["mass -1"]
    assert found["mass -2"][0] == 0.0
    assert all(torch.isnan(torch.tensor(found[f"mass {offset:+d}"][0])) for offset in range(1, 9))  # nobody sees ahead


def test_a_window_of_near_tokens_is_no_distance() -> None:
    """The shares of a real head that was called "2 before": 0.138, 0.636, 0.171, 0.020 at distances 0 to 3."""
    weights, shares = torch.zeros(1, 1, T, T), (0.138, 0.636, 0.171, 0.020, 0.035)
    for distance, share in enumerate(shares):
        weights[0, 0, range(distance, T), range(T - distance)] = share
    found = held_against(weights, CAUSAL)
    score, _, below, above = found["mass -2"]
    assert (score, below, above) == pytest.approx((0.171, 0.020, 0.636))  # -3 is below -2: the key stands further left
    score, _, below, above = found["mass -1"]
    assert (score, below, above) == pytest.approx((0.636, 0.171, 0.138))
    score, _, below, above = found["mass +0"]
    assert (score, below) == pytest.approx((0.138, 0.636))
    assert above != above  # nobody sees ahead, so that is no neighbour


def test_a_distance_and_its_neighbours_are_of_the_same_queries() -> None:
    """Query 1 sees nothing two before it, so it is in none of the three means of the token before."""
    weights = uniform(CAUSAL)
    weights[0, 0, 1, :2] = torch.tensor([1.0, 0.0])
    score, _, below, above = held_against(weights, CAUSAL)["mass -1"]
    assert score == below == above == pytest.approx(sum(1 / seen for seen in range(3, 13)) / 10)


def test_a_local_window_is_more_than_its_best_distance() -> None:
    spread = torch.zeros(1, 1, T, T)
    for distance in range(3):
        spread[0, 0, range(distance, T), range(T - distance)] = 1 / 3
    score, others, one = held_against(spread, CAUSAL)["window 2"][:3]
    # Queries 0 to 8, whose near keys are seen from far too: one third, two thirds, then all.
    assert (score, one) == (pytest.approx((1 + 2 + 3 * 7) / 3 / 9), pytest.approx(1 / 3))
    # An even spread of what each gives, 1/3 and 2/3 and then 1, over the keys that it sees; from far comes nothing.
    assert others == pytest.approx((1 / 3 + 2 / 3 + sum(3 / seen for seen in range(3, 10))) / 9)
    score, _, one = held_against(causal_rows(lambda query: query - 1))["window 2"][:3]
    assert (score, one) == (1.0, 1.0)  # nothing beside the token before


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
        if one != one:
            continue
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
    look = AttentionWeights(weights, torch.ones(1, 1, 4, 4, dtype=torch.bool), "cross", target, source)
    found = measure_text(look, words=WORDS, rows=slice(0, 2))
    assert found[0, 0, TEXT_MEASURES.index("duplicate token"), 0] == 1.0


@pytest.mark.parametrize(
    "visible", [ALL, CAUSAL, torch.rand(2, 1, T, T, generator=torch.Generator().manual_seed(1)) > 0.4]
)
def test_along_diagonals_as_over_the_whole_matrix(visible: torch.Tensor) -> None:
    weights = torch.rand(2, 3, T, T, generator=torch.Generator().manual_seed(0)) * visible
    places = torch.arange(T)
    apart = places - places[:, None]
    for offset, found in zip(OFFSETS, at_distances(weights, visible, OFFSETS), strict=True):
        sees = [(visible & (apart == offset + beside)).any(-1, keepdim=True) for beside in (-1, 0, 1)]
        asked = torch.stack([each for each in sees if each.any() or each is sees[1]]).all(0)
        whole = against_others(weights, visible, (apart == offset) & asked)
        for one, other in zip(found[:2], whole, strict=True):
            assert torch.allclose(one.expand(2, 3), other.expand(2, 3), atol=1e-6, equal_nan=True)


def test_what_counts_as_a_delimiter_and_as_rare() -> None:
    names = {1: ".", 2: " ,", 3: "\n\n", 4: "cat", 5: " ", 6: "'s", 7: "dog", 8: '."'}

    class Tokenizer:
        def decode(self, ids: list[int]) -> str:
            return names[ids[0]]

    found = token_kinds(Tokenizer(), [1, 2, 3, 4, 4, 5, 6, 7, 8], marks=(90,))
    assert found.delimiters == {1, 2, 3, 8, 90}
    assert found.rare == {5, 6, 7}


def test_what_single_tokens_get() -> None:
    """Three keys of four get 1, 2 and 4 parts of what is not given to the first; their mean is 7/3."""
    weights = torch.tensor([0.3, 0.1, 0.2, 0.4]).expand(1, 1, 4, 4)
    ids = torch.tensor([[5, 6, 7, 6]])
    look = AttentionWeights(weights, torch.ones(1, 1, 4, 4, dtype=torch.bool), "", ids, ids)
    found = tokens_apart(look, rows=slice(0, 4))
    assert found.lift[0, 0, 1:].exp().tolist() == pytest.approx([3 / 7, 6 / 7, 12 / 7])
    assert torch.isnan(found.lift[0, 0, 0])
    assert found.first.exp().item() == pytest.approx(0.3 / (0.7 / 3))
    # Tokens 1 and 3 are alike: 0.4 and 0.1 to each other, as all others give, and an even spread gives a quarter.
    assert found.alike[0, 0, [1, 3], 0].tolist() == pytest.approx([0.0, 0.0], abs=1e-7)
    assert found.alike[0, 0, [1, 3], 1].tolist() == pytest.approx([0.15, -0.15])
    assert torch.isnan(found.alike[0, 0, [0, 2]]).all()
    assert found.itself[0, 0, :, 1].tolist() == pytest.approx([0.05, -0.15, -0.05, 0.15])
    again = TokenFigures.unpacked(found.packed())
    for name in ("first", "lift", "alike", "itself"):
        assert torch.equal(getattr(again, name).nan_to_num(), getattr(found, name).nan_to_num())


def test_single_tokens_are_those_of_the_text() -> None:
    """Behind a mark, and in a decoder that reads a start token first."""
    ids = torch.arange(4)[None]
    weights = torch.tensor([0.4, 0.1, 0.2, 0.3]).expand(1, 1, 4, 4)
    seen = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    for stack, rows in (("", slice(1, 3)), ("decoder", slice(1, 3)), ("encoder", slice(1, 3))):
        found = tokens_apart(AttentionWeights(weights, seen, stack, ids, ids), rows=rows)
        assert found.lift.exp().flatten().tolist() == pytest.approx([0.5, 1.0])
        assert found.alike.shape == found.itself.shape == (1, 1, 2, 2)
