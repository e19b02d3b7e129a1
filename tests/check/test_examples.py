"""The examples that are shipped: each mistake is caught by these checks and no others, and called by its name."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest

pytest.importorskip("torch")
import torch
from torch.nn.functional import scaled_dot_product_attention

from manyheads.check.catalogue import CASES
from manyheads.check.examine import examine
from manyheads.ops import sdpa, softmax, tiled
from support.check_support import EXAMPLES, example, failing, guessed, outcomes, passing

ALL_BUT_ONNX = [case.name for case in CASES if case.suite != "onnx" and "projections" not in case.needs]
PROJECTING = {"projections", "biases", "cache", "wide-heads", "dropout"}  # no question to a function of q, k and v
VALUES = ["values", "fewer-queries", "more-queries"]
MASKS = [
    "mask",
    "mask-values",
    "mask-cross",
    "mask-blocks-all",
    "mask-samples",
    "mask-heads",
    "empty-row",
    "empty-sample",
    "empty-head",
]
CACHE = ["causal-cache", "causal-steps", "causal-more-queries"]

# function of wrong.py: (the fault as it is named, the checks that it fails, in their order)
WRONG = {
    "scale_missing": ("scale missing", ["values", "scale", *VALUES[1:], "value-width", "multi-query"]),
    "scale_by_model_width": ("scale by d_model", [*VALUES, "value-width"]),
    "softmax_over_queries": (
        "softmax over queries", ["values", "scale", *VALUES[1:], "value-width", "large-scores", "multi-query"],
    ),
    "causal_top_left": ("causal top-left", CACHE),
    "causal_one_ahead": (
        "causal one ahead",
        ["values", "scale", "mean", *VALUES[1:], "value-width", "large-scores", "causal", "causal-values", *CACHE, "future",
         "multi-query"],
    ),
    "causal_blocked_as_visible": (
        "causal inverted", ["causal", "causal-values", CACHE[0], CACHE[1], CACHE[2], "future"],
    ),
    "heads_tiled": ("heads tiled", ["group-order", "group-values"]),
    "mask_inverted": ("mask inverted", MASKS),
    "mask_multiplied": ("mask as zeros", MASKS),
    "bias_before_scale": ("bias before scale", ["bias", "bias-cross"]),
    "window_one_more": ("window one more", ["window", "window-cache", "window-one", "window-past"]),
    "window_short_of_the_first_key": ("window one less", ["window", "window-cache"]),
    "heads_cut_by_view": ("heads cut without transpose", ["values", "mean", *VALUES[1:], "large-scores"]),
    "overflows": ("not finite", ["large-scores"]),
    "sink_beside_the_largest": ("sinks overflow", ["sinks-large"]),
    "writes_into_its_input": ("q overwritten", ["inputs-untouched"]),
}  # fmt: skip

# function of weak.py: (the demand, the checks that say so, what they call it)
WEAK = {
    "nan_on_empty_rows": (
        "empty-rows", ["empty-row", "empty-sample", "empty-head", "empty-row-gradients"],
        {"NaN on empty rows", "NaN gradients"},
    ),
    "mean_on_empty_rows": ("empty-rows", ["empty-row", "empty-sample", "empty-head"], {"mean on empty rows"}),
    "softmax_in_16_bits": ("bfloat16", ["bfloat16"], {"precision"}),
}  # fmt: skip


def test_every_wrong_example_is_in_the_table() -> None:
    tree = ast.parse((EXAMPLES / "wrong.py").read_text())
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == list(WRONG)
    tree = ast.parse((EXAMPLES / "weak.py").read_text())
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == list(WEAK)
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "weak.py",
        "wrong_module.py",
        "right.py",
        "right_numpy.py",
        "right_module.py",
        "wrong.py",
    }


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_caught_by_these_checks_and_named(name: str) -> None:
    cause, expected = WRONG[name]
    found = {
        check: outcome for check, outcome in outcomes(example("wrong.py", name)).items() if outcome.status == "fail"
    }
    assert list(found) == expected
    for outcome in found.values():
        assert outcome.finding.cause == cause
        assert outcome.finding.expected != outcome.finding.found
        assert outcome.finding.code


@pytest.mark.parametrize("name", WEAK)
def test_a_textbook_function_is_weak_and_not_wrong(name: str) -> None:
    demand, expected, causes = WEAK[name]
    subject = example("weak.py", name)
    found = outcomes(subject)
    assert [check for check, outcome in found.items() if outcome.status == "fail"] == []
    weak = {check: outcome.finding for check, outcome in found.items() if outcome.status == "weak"}
    assert [check for check, finding in weak.items() if finding.demand == demand] == expected
    assert {weak[check].cause for check in expected} == causes
    required = {case.name: examine(subject, case, required=(demand,)).status for case in CASES if case.name in expected}
    assert required == dict.fromkeys(expected, "fail")


def test_an_error_is_no_wrong_answer_but_for_the_mask_alone_it_is() -> None:
    def no_empties(q, k, v):
        assert q.numel()
        assert k.numel()
        return ours(q, k, v)

    def no_empties_with_a_mask(q, k, v, mask=None):
        assert mask is None or mask.numel()
        return ours(q, k, v, visible=mask)

    def as_many_queries_as_keys(q, k, v, causal=False):
        if causal:
            assert q.shape == k.shape
        causal_mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
        return ours(q, k, v, visible=causal_mask if causal else None)

    def self_attention_only(q, k, v):
        return ours(q, k.reshape(q.shape), v)

    found = outcomes(guessed(no_empties), "no-batch", "no-queries", "no-keys")
    assert [(outcome.status, outcome.finding.demand) for outcome in found.values()] == [("weak", "empty")] * 3
    found = outcomes(guessed(no_empties_with_a_mask), "no-batch", "no-queries", "no-keys")
    assert [outcome.status for outcome in found.values()] == ["fail", "fail", "weak"]
    assert {outcome.finding.cause for outcome in found.values()} == {"empty with a mask"}
    found = outcomes(guessed(as_many_queries_as_keys), "causal", *CACHE)
    assert [outcome.status for outcome in found.values()] == ["pass", "weak", "weak", "weak"]
    assert guessed(self_attention_only).adapter.lacks["cross"].startswith("it refuses: RuntimeError")


def test_right_py_passes_every_check_there_is() -> None:
    subject = example("right.py", "attention")
    assert set(subject.adapter.lacks) - {"onnx"} == PROJECTING
    assert passing(subject) == ALL_BUT_ONNX


def test_right_py_passes_onnx() -> None:
    pytest.importorskip("onnx")
    outcome = outcomes(example("right.py", "attention"), "onnx")["onnx"]
    assert (outcome.status, outcome.reason) == ("pass", "93 of 93 cases that it can take")


def test_right_numpy_py_passes_what_it_takes() -> None:
    subject = example("right_numpy.py", "attention")
    assert set(subject.adapter.lacks) - {"onnx"} - PROJECTING == {
        "padding", "bias", "scale", "softcap", "sinks", "weights", "gradients", "bfloat16",
    }  # fmt: skip
    assert failing(subject) == []
    assert {"mask-heads", "empty-row", "window", "group-order", "strides", "float16-overflow"} <= set(passing(subject))


def test_right_module_py_passes_all_that_can_be_asked_of_a_module() -> None:
    subject = example("right_module.py", "MultiHeadAttention")
    never = {"onnx", "value-width", "bias", "window", "scale", "softcap", "sinks"}
    assert set(subject.adapter.lacks) == never
    asked = [case.name for case in CASES if not set(case.needs) & never]
    asked.remove("heads-refused")  # its heads may have a width of their own
    assert passing(subject) == asked
    assert {"cache-steps", "projected-cross", "projected-gradients", "wide-heads", "dropout-off"} <= set(asked)


# class of wrong_module.py: (the fault as it is named, the checks of projections that it fails)
WRONG_MODULES = {
    "CutWithoutTranspose": ("heads cut without transpose", ["projected", "projected-mean", "projected-biases"]),
    "JoinedWithoutTranspose": ("heads joined without transpose", ["projected", "projected-mean", "projected-biases"]),
    "NoOutputProjection": (
        "W_o missing", ["projected", "projected-one-token", "projected-mean", "projected-biases"],
    ),
    "ScaledByModelWidth": ("scale by d_model", ["projected", "projected-biases"]),
    "CopiedLine": (
        "values projected with W_k", ["projected", "projected-one-token", "projected-mean", "projected-biases"],
    ),
}  # fmt: skip


def test_every_class_of_wrong_module_py_is_in_the_table() -> None:
    tree = ast.parse((EXAMPLES / "wrong_module.py").read_text())
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    assert classes == ["MultiHeadAttention", *WRONG_MODULES]
    assert failing(example("wrong_module.py", "MultiHeadAttention")) == []


@pytest.mark.parametrize("name", WRONG_MODULES)
def test_a_mistake_of_a_module_is_caught_and_named(name: str) -> None:
    cause, expected = WRONG_MODULES[name]
    asked = [case.name for case in CASES if case.suite == "projections"]
    found = {
        check: outcome.finding
        for check, outcome in outcomes(example("wrong_module.py", name), *asked).items()
        if outcome.status == "fail"
    }
    assert list(found) == expected
    assert {finding.cause for finding in found.values()} == {cause}


def ours(q, k, v, *, visible=None, bias=None, softcap=None, sinks=None, scale=None, return_weights=False):
    return softmax.attention(
        q, k, v, scale=q.shape[-1] ** -0.5 if scale is None else scale, visible=visible, bias=bias, softcap=softcap,
        sinks=sinks, return_weights=return_weights,
    )  # fmt: skip


def ours_tiled(q, k, v, *, visible=None, bias=None, softcap=None, sinks=None, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return tiled.attention(q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks)


def ours_sdpa(q, k, v, *, visible=None, bias=None, softcap=None, sinks=None, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return sdpa.attention(q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks)


@pytest.mark.parametrize("form", [ours, ours_tiled, ours_sdpa])
def test_our_own_operators_pass(form) -> None:
    subject = guessed(form)
    assert failing(subject) == []
    assert {
        "empty-row-gradients",
        "softcap-mask",
        "sinks-values",
        "bias",
        "bfloat16",
        "no-keys",
        "gradients-grouped",
    } <= set(passing(subject))


def theirs(query, key, value, attn_mask=None, is_causal=False, scale=None, enable_gqa=False):
    return scaled_dot_product_attention(
        query, key, value, attn_mask=attn_mask, is_causal=is_causal, scale=scale, enable_gqa=enable_gqa
    )


def test_torch_s_own_function_is_top_left_and_otherwise_right() -> None:
    """Case O12: a flag that means the top-left corner, where a cache needs the other one."""
    subject = guessed(theirs)
    assert (subject.adapter.mask, subject.adapter.bias, subject.adapter.causal) == ("visible", "mask", "flag")
    found = outcomes(subject)
    assert [name for name, outcome in found.items() if outcome.status == "fail"] == CACHE
    assert {found[name].finding.cause for name in CACHE} == {"causal top-left"}
    without = replace(
        subject, adapter=replace(subject.adapter, lacks={**subject.adapter.lacks, "causal": "told not to"})
    )
    assert failing(without) == []
