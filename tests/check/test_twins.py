"""The wrong twins: each is told from the right answer and from the others on the problem that is about it."""

from __future__ import annotations

from dataclasses import replace

import pytest

pytest.importorskip("torch")
import torch

from manyheads.check.catalogue import by_name
from manyheads.check.problem import Problem, answer
from manyheads.check.twins import TWINS, diagnose

# twin -> the case on which it shows
ABOUT = {
    "NaN on empty rows": "empty-row", "mean on empty rows": "empty-row", "open on empty rows": "empty-row",
    "scale missing": "values", "scale by d_model": "values", "scale by dim": "values", "scale upside down": "values",
    "scale by keys": "values", "scale by heads": "values", "softmax missing": "values", "weights transposed": "values",
    "first key/value head": "group-values", "causal inverted": "causal-values", "causal inverted, NaN": "causal-values",
    "causal inverted, mean": "causal-values", "causal or mask": "causal-mask", "window inverted": "window",
    "scale after softmax": "values", "weights not normalised": "values", "mask times infinity": "mask-values",
    "softmax twice": "values", "sigmoid for softmax": "values", "keys viewed, not transposed": "values",
    "lengths one more": "padding", "lengths one less": "padding", "sinks overflow": "sinks-large", "lengths tiled over heads": "padding", "padding of queries": "padding",
    "scale ignored": "explicit-scale", "scaled twice": "explicit-scale",
    "scale as divisor": "explicit-scale", "softmax over queries": "values", "softmax over heads": "values",
    "softmax over batch": "values", "heads tiled": "group-values", "causal ignored": "causal-values",
    "causal top-left": "causal-cache", "causal one short": "causal-values",
    "causal one short, NaN": "causal-values", "causal one ahead": "causal-values", "causal reversed": "causal-values",
    "mask inverted": "mask-values", "mask inverted, NaN": "empty-row", "mask ignored": "mask-values",
    "mask as zeros": "mask-values", "mask after softmax": "mask-values", "mask added": "mask-values",
    "window ignored": "window", "window one more": "window", "window one less": "window", "window two-sided": "window",
    "bias before scale": "bias", "bias ignored": "bias", "bias subtracted": "bias", "bias inside softcap": "bias",
    "softcap ignored": "softcap-values", "softcap before scale": "softcap-values", "sinks ignored": "sinks-values",
    "sinks scaled": "sinks-values", "heads cut without transpose": "values", "heads joined without transpose": "values",
    "heads cut and joined without transpose": "values",
}  # fmt: skip


def problem_for(name: str) -> Problem:
    case = by_name()[ABOUT[name]]
    problem = case.build(case.full, torch.Generator().manual_seed(0))
    if name == "bias inside softcap":
        problem = replace(problem, softcap=1.0)
    if name.startswith("lengths one"):
        assert problem.keep is not None
        problem = replace(problem, keep=torch.arange(4) < torch.tensor([[2], [3]]))
    if name == "mask inverted, NaN":  # its complement has an empty row
        assert problem.visible is not None
        problem = replace(problem, visible=problem.visible.clone().index_fill(2, torch.tensor([1]), value=True))
    return problem


def test_the_table_has_every_twin() -> None:
    assert {twin.name for twin in TWINS} == set(ABOUT)
    assert len({twin.says for twin in TWINS}) == len(TWINS)


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_a_fault_is_named(twin) -> None:
    problem = problem_for(twin.name)
    wrong = twin.output(problem.to(torch.float64))
    found = diagnose(problem, wrong.float(), 1e-5)
    assert found is not None
    assert found.name == twin.name


@pytest.mark.parametrize("name", sorted(set(ABOUT.values())))
def test_the_right_answer_has_no_fault(name: str) -> None:
    case = by_name()[name]
    problem = case.build(case.full, torch.Generator().manual_seed(0))
    assert diagnose(problem, answer(problem), 1e-5) is None


def test_numbers_that_no_twin_gives_have_no_name() -> None:
    problem = problem_for("scale missing")
    assert diagnose(problem, answer(problem) + 0.01, 1e-5) is None


def test_a_row_of_nan_is_a_row_that_sees_nothing() -> None:
    """A window of W - 1 = 0 keys: the first query sees nothing, and softmax of nothing is NaN."""
    problem = replace(problem_for("window one less"), window=1)
    wrong = torch.full_like(answer(problem), torch.nan)
    assert diagnose(problem, wrong, 1e-5) is None
    assert diagnose(problem, wrong, 1e-5, suspects=("window one less",)).name == "window one less"
    partly = replace(problem_for("window inverted"), window=6)  # the last query sees nothing outside of it
    wrong = next(twin for twin in TWINS if twin.name == "window inverted").output(partly.to(torch.float64))
    wrong[:, :, -1] = torch.nan
    assert diagnose(partly, wrong, 1e-9).name == "window inverted"


def test_a_suspect_is_asked_first() -> None:
    """With one head of the model, dividing by sqrt(d_model) and by sqrt(dim) are the same; with four keys of four, too."""
    case = by_name()["values"]
    problem = case.build(replace(case.full, keys=16, queries=16, heads=4, kv_heads=4), torch.Generator().manual_seed(0))
    wrong = next(twin for twin in TWINS if twin.name == "scale by keys").output(problem.to(torch.float64))
    assert diagnose(problem, wrong, 1e-9).name == "scale by d_model"
    assert diagnose(problem, wrong, 1e-9, suspects=("scale by keys",)).name == "scale by keys"


def test_reports_are_of_faults_that_there_are() -> None:
    import re

    from manyheads.check import twins

    assert set(twins._REPORTS) <= {twin.name for twin in TWINS}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for twin in TWINS for thread in twin.resembles)
    assert next(twin for twin in TWINS if twin.name == "heads tiled").resembles == ("onnx/onnx#7274",)
