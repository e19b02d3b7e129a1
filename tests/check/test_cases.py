"""The cases themselves: what they expect, held against loops in plain Python and against figures by hand."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch")
from dataclasses import replace

import torch

from manyheads.check.case import Case
from manyheads.check.catalogue import CASES, by_name
from manyheads.check.features import FEATURES
from manyheads.check.problem import Problem, Sizes, answer, answer_weights, seen, smaller
from support.check_support import by_loops

OF_REFERENCE = [case for case in CASES if case.name not in ("group-refused", "onnx")]


def problem_of(name: str, seed: int = 0) -> Problem:
    case = by_name()[name]
    return case.build(case.full, torch.Generator().manual_seed(seed))


def test_every_case_has_a_name_of_its_own_and_known_features_and_threads() -> None:
    assert len({case.name for case in CASES}) == len(CASES) == 85
    assert {case.suite for case in CASES} & {case.name for case in CASES} == {"onnx"}  # --only takes both
    for case in CASES:
        assert re.fullmatch(r"[a-z0-9-]+", case.name)
        assert set(case.needs) <= set(FEATURES)
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in case.resembles)


@pytest.mark.parametrize("case", OF_REFERENCE, ids=lambda case: case.name)
def test_the_reference_agrees_with_loops_in_plain_python(case: Case) -> None:
    full = replace(case.full, queries=min(case.full.queries, 6), keys=min(case.full.keys, 24))  # loops are slow
    problem = case.build(full, torch.Generator().manual_seed(0))
    torch.testing.assert_close(answer(problem), by_loops(problem), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", OF_REFERENCE, ids=lambda case: case.name)
def test_a_case_can_be_made_in_all_sizes_that_are_sought_through(case: Case) -> None:
    made = list(smaller(case.full, case.least, case.valid))
    assert [sizes.elements for sizes in made] == sorted(sizes.elements for sizes in made)
    for sizes in made[:60]:
        assert answer(case.build(sizes, torch.Generator().manual_seed(1))).isfinite().all()


def test_smaller_goes_from_the_least_to_the_full_sizes() -> None:
    full, least = Sizes(heads=2, kv_heads=2, queries=2, keys=2), Sizes()
    made = list(smaller(full, least, lambda s: s.heads == s.kv_heads and s.queries == s.keys))
    assert [(s.heads, s.queries) for s in made] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert [s.elements for s in made] == [3, 6, 6, 12]


def test_long_sizes_are_not_all_gone_through() -> None:
    full = Sizes(heads=2, kv_heads=2, queries=130, keys=130, dim=8, value_dim=8)
    made = list(
        smaller(full, Sizes(), lambda s: s.queries == s.keys and s.heads == s.kv_heads and s.dim == s.value_dim)
    )
    lengths = {s.queries for s in made}
    assert {1, 2, 8, 31, 32, 33, 65, 129, 130} <= lengths
    assert len(lengths) < 30


def rows(problem: Problem) -> list[list[int]]:
    """The keys that each query of the first head sees."""
    return [row.nonzero().flatten().tolist() for row in seen(problem)[0, 0]]


def test_scale_by_hand() -> None:
    torch.testing.assert_close(answer(problem_of("scale"))[0, 0, 0].float(), torch.tensor([3.0, 6, 0, 0]))


def test_causal_by_hand() -> None:
    assert rows(problem_of("causal")) == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]
    out = answer(problem_of("causal"))[0, 0]
    expected = torch.tensor([[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4])
    torch.testing.assert_close(out, expected.double(), rtol=0, atol=1e-7)


def test_causal_with_a_cache_by_hand() -> None:
    """Case O12, with three queries and six keys."""
    assert rows(problem_of("causal-cache")) == [[0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


def test_causal_with_more_queries_than_keys_by_hand() -> None:
    assert rows(problem_of("causal-more-queries")) == [[], [], [0], [0, 1]]
    assert not answer(problem_of("causal-more-queries"))[:, :, :2].any()


def test_window_counts_by_hand() -> None:
    """Case O55: T = 6, W = 3."""
    assert [len(row) for row in rows(problem_of("window"))] == [1, 2, 3, 3, 3, 3]
    assert rows(problem_of("window-cache")) == [[2, 3, 4], [3, 4, 5]]
    assert rows(problem_of("window-one")) == [[0], [1], [2], [3]]
    assert rows(problem_of("window-wide")) == rows(problem_of("causal"))


def test_group_order_by_hand() -> None:
    """Case O21: query head h reads key/value head h // (H/K)."""
    assert answer(problem_of("group-order"))[0, :, 0, 0].float().tolist() == [1, 1, 1, 2, 2, 2]


def test_sinks_by_hand() -> None:
    """Case O53: logits 1, 2, 3 and a sink of 0.5."""
    weights = answer_weights(problem_of("sinks"))[0, 0, 0]
    assert [round(weight, 4) for weight in weights.tolist()] == [0.0854, 0.2321, 0.6308]
    assert round(weights.sum().item(), 3) == 0.948


def test_softcap_by_hand() -> None:
    """Case O51: cap 50, scores 120 and 48."""
    problem = problem_of("softcap")
    ratio = answer_weights(problem)[0, 0, 0, 0].log() - answer_weights(problem)[0, 0, 0, 1].log()
    assert round(ratio.item(), 2) == round(49.18 - 37.21, 2)


def test_one_key_and_mean_and_overflow_by_hand() -> None:
    one = problem_of("one-key")
    torch.testing.assert_close(answer(one), one.v.double())
    mean = problem_of("mean")
    torch.testing.assert_close(answer(mean)[:, :, 2], mean.v.double().mean(2))
    beyond = problem_of("float16-overflow")
    assert (beyond.q @ beyond.k.mT)[0, 0, 0].tolist() == [82_944, 72_576, 62_208]
    torch.testing.assert_close(answer(beyond)[:, :, 1], beyond.v[:, :, 0].double())
    assert answer(problem_of("empty-row"))[:, :, 0].abs().max() == 0


@pytest.mark.parametrize("name", ["mask", "mask-values", "mask-samples", "mask-heads", "padding"])
def test_masks_show_and_block_something_in_every_row(name: str) -> None:
    shown = seen(problem_of(name))
    assert shown.any(-1).all()
    assert not shown.all(-1).any()


def test_onnx_cases_are_93_and_the_reference_gives_their_answers() -> None:
    pytest.importorskip("onnx")
    from manyheads.check.onnx_cases import collect
    from manyheads.check.suites.onnx import TOLERANCES

    cases = collect()
    assert len(cases) == 93
    for case in cases:
        relative, absolute = TOLERANCES[case.problem.q.dtype]
        torch.testing.assert_close(answer(case.problem), case.expected.double(), rtol=relative, atol=absolute)


def test_a_problem_moves_to_another_format_whole() -> None:
    problem = replace(problem_of("bias"), visible=torch.ones(1, 1, 5, 5, dtype=torch.bool))
    moved = problem.to(torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in moved.tensors().items()} == {
        "q": torch.bfloat16, "k": torch.bfloat16, "v": torch.bfloat16, "visible": torch.bool, "bias": torch.bfloat16,
    }  # fmt: skip
