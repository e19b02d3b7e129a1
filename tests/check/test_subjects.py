"""Multi-head attention in the styles of a dozen well-known tutorials: what is right passes, what is wrong has a name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

pytest.importorskip("torch")

from manyheads.check import examine
from manyheads.check.catalogue import CASES
from support.check_support import named, outcomes
from support.sweeps import some

FOLDER = Path(__file__).parent / "subjects"

RIGHT = [
    "annotated:MultiHeadedAttention", "annotated:MultiHeadedAttention.attend", "annotated:attention", "book:CachedAttention",
    "book:MultiHeadAttention", "d2l_style:DotProductAttention", "d2l_style:MultiHeadAttention", "einops_style:Attention",
    "einops_style:DimFirst", "functions:grouped", "functions:linears", "functions:mha", "functions:neox", "functions:unnamed",
    "gpt:CausalSelfAttention", "hub_style:GroupedAttention", "keras_like:MultiHeadAttention", "numpy_style:SelfAttention",
    "numpy_style:multi_head_attention", "one_file:MultiHeadAttention", "torch_style:MultiheadAttention",
    "torch_style:PackedAttention", "transformer_style:MultiHeadAttention", "transformer_style:SelfAttention",
    "transformer_style:attention_of_four", "transformer_style:StartPosition", "varied:HeadsApart", "varied:OneHead",
    "varied:Plain", "varied:ReturnsScores", "varied:SizesOfOtherNames", "varied:TokensFirst", "varied:WeightsInADict",
    "varied:any_order", "varied:OneKeyValueHead", "varied:NormedFirst", "varied:Stacked", "varied:told_everything",
]  # fmt: skip
WRONG = {
    "annotated:MaskAfterSoftmax": "mask after softmax",
    "annotated:OneLinearForAll": "all projected with W_q",
    "annotated:ScaledByModelWidth": "scale by d_model",
    "annotated:SoftmaxOverQueries": "softmax over queries",
    "book:AcrossHeads": "attention over heads",
    "book:CacheNeverReset": "cache not fresh",
    "book:CacheOverwritten": "cache ignored",
    "book:KeysForQueries": "queries projected with W_k",
    "book:OneAhead": "causal one ahead",
    "book:ZerosForMasked": "mask as zeros",
    "d2l_style:HeadsNeverTransposed": "heads cut without transpose",
    "d2l_style:JoinedInterleaved": "heads joined interleaved",
    "d2l_style:LengthsTiled": "lengths tiled over heads",
    "einops_style:JoinedDimFirst": "heads joined interleaved",
    "einops_style:SoftmaxOverHeads": "softmax over heads",
    "einops_style:ValuesByColumns": "weights transposed",
    "functions:blocked_as_visible": "causal inverted",
    "functions:grouped_tiled": "heads tiled",
    "functions:keys_not_projected": "W_k missing",
    "functions:scaled_twice": "scale by dim",
    "gpt:DropoutAlways": "dropout in evaluation",
    "gpt:FusedCutByView": "fused heads cut without transpose",
    "gpt:JoinedByView": "heads joined without transpose",
    "gpt:MaskInverted": "causal inverted, NaN",
    "gpt:NoOutputProjection": "W_o missing",
    "gpt:NoScale": "scale missing",
    "gpt:SplitInAnotherOrder": "W_k and W_v swapped",
    "hub_style:CacheReplaced": "cache ignored",
    "hub_style:KeyValueHeadsTiled": "heads tiled",
    "hub_style:MaskTopLeftWithCache": "causal top-left",
    "keras_like:KeysFromQuery": "keys from x",
    "keras_like:NoBiasOfQKV": "b_q, b_k and b_v missing",
    "numpy_style:heads_by_reshape": "heads cut without transpose",
    "numpy_style:no_softmax": "softmax missing",
    "numpy_style:output_transposed": "W_o transposed",
    "one_file:HeadsReversed": "heads joined in reverse",
    "one_file:ScaledByEmbedding": "scale by d_model",
    "torch_style:PaddingOfQueries": "padding of queries",
    "torch_style:ValuesOfTheQuery": "values from x",
    "transformer_style:NoScaleBesideResidual": "scale missing",
    "varied:CausalButForgotten": "causal ignored",
    "varied:NeverCut": "one head for all",
    "varied:NotNormalised": "weights not normalised",
    "varied:OverlappingHeads": "in the values",
    "varied:ScaledAfterSoftmax": "scale after softmax",
    "varied:infinity_times_mask": "mask times infinity",
    "varied:KeysAloneByView": "keys cut without transpose",
    "varied:KeysViewed": "keys viewed, not transposed",
    "varied:NoOutputLayer": "W_o missing",
    "varied:ScaleUpsideDown": "scale upside down",
    "varied:SigmoidForSoftmax": "sigmoid for softmax",
    "varied:SoftmaxTwice": "softmax twice",
    "varied:ValuesKeptAsKeys": "cached values are keys",
    "varied:one_too_long": "lengths one more",
}
# the checks in which each of them shows; the rest takes time and adds nothing
TELLING = [case.name for case in CASES if case.suite in ("projections", "cache")]
TELLING += ["values", "mask", "mask-values", "padding", "causal", "causal-values", "group-order"]
PARTS = {"clones", "masked_softmax", "softmax", "Head", "HeadOfWidth", "repeat_kv", "split", "merge"}


@pytest.fixture(autouse=True)
def _short_search(monkeypatch) -> None:
    monkeypatch.setattr(examine, "MOST_SECONDS", 0.1)


def subject(name: str):
    file, _, inside = name.partition(":")
    return named(str(FOLDER / f"{file}.py"), inside)


def test_every_function_and_class_is_in_one_of_the_lists() -> None:
    there = {
        f"{path.stem}:{node.name}"
        for path in FOLDER.glob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in PARTS
    }
    assert there <= {*RIGHT, *WRONG}
    assert len(RIGHT) >= 10
    assert len(WRONG) >= 25


@pytest.mark.parametrize("name", some(RIGHT, 2))
def test_what_is_right_is_never_called_wrong(name) -> None:
    found = outcomes(subject(name))
    assert {check: outcome.finding for check, outcome in found.items() if outcome.status == "fail"} == {}
    assert sum(outcome.status == "pass" for outcome in found.values()) >= 14


@pytest.mark.parametrize("name", some(WRONG, 2))
def test_what_is_wrong_is_named(name) -> None:
    found = outcomes(subject(name), *TELLING)
    causes = {outcome.finding.cause for outcome in found.values() if outcome.status == "fail"}
    assert WRONG[name] in causes
    # what is wrong twice over may go without a name, and then with the step in which it is
    assert causes <= {WRONG[name], "empty with padding", "not finite", "in the scores", "in the values", "in the masks"}
