"""ONNX's own node cases of `Attention` through every form of softmax attention; onnxruntime as a second oracle."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("onnx")
import torch

from manyheads.ops import sdpa, softmax, tiled
from support import onnx_runtime
from support.onnx_adapters import attention
from support.onnx_cases import Case, collect, differences

FORMS = {"softmax": softmax.attention, "tiled": tiled.attention, "sdpa": sdpa.attention}
CASES = {case.name: case for case in collect("Attention")}

# Cases that our operators do not pass, by name. It started empty; a case is fixed, not listed.
EXCEPTIONS: tuple[str, ...] = ()

# What onnxruntime 1.32.0 on a CPU does not compute, or computes otherwise than onnx's own reference.
NOT_IN_RUNTIME = {
    "test_attention_4d_causal_bf16": "no bfloat16",
    "test_attention_4d_padded_kv_bf16": "no bfloat16",
    "test_attention_4d_causal_padded_kv_bf16": "no bfloat16",
    "test_attention_4d_attn_mask_causal_bf16": "no bfloat16",
    "test_attention_3d_causal_bf16": "no bfloat16",
    "test_attention_4d_diff_heads_mask4d_padded_kv": "refuses a mask shorter than the key axis",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_3d_mask_causal": "masked scores differ, output equal",
    "test_attention_4d_with_past_and_present_qk_matmul_bias_4d_mask_causal": "masked scores differ, output equal",
}


def test_there_are_93_cases_and_no_exceptions() -> None:
    assert len(CASES) == 93
    assert EXCEPTIONS == ()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_onnx_attention(name: str, form: str) -> None:
    case = CASES[name]
    assert differences(case, attention(case, FORMS[form])) == []


@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_IN_RUNTIME])
def test_onnxruntime_says_the_same(name: str) -> None:
    pytest.importorskip("onnxruntime")
    case = CASES[name]
    theirs = onnx_runtime.run(case)
    assert differences(Case(**{**vars(case), "outputs": theirs}), attention(case)) == []


def _tiled_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **asked: object) -> torch.Tensor:
    """Case O21: key/value heads in the order 0, 1, 0, 1."""
    times = q.shape[1] // k.shape[1]
    return softmax.attention(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), **asked)


def _one_key_more(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **asked: object) -> torch.Tensor:
    """Sees one key too many at the frontier of time."""
    return softmax.attention(q, k, v, **{**asked, "offset": asked["offset"] + 1})


def _cap_after_mask(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **asked: object) -> torch.Tensor:
    """The cap bends -inf to a finite number."""
    held = softmax.scores(q, k, **{**asked, "softcap": None})
    if asked["softcap"]:
        held = asked["softcap"] * torch.tanh(held / asked["softcap"])
    return softmax.probabilities(held) @ v.repeat_interleave(q.shape[1] // v.shape[1], 1)


@pytest.mark.parametrize(
    ("wrong", "caught"),
    [
        (_tiled_heads, "test_attention_4d_gqa"),
        (_one_key_more, "test_attention_4d_causal"),
        (_cap_after_mask, "test_attention_4d_softcap_neginf_mask_poison"),
    ],
)
def test_the_cases_catch_a_wrong_attention(wrong: Callable[..., torch.Tensor], caught: str) -> None:
    assert differences(CASES[caught], attention(CASES[caught], wrong))
    assert differences(CASES["test_attention_4d"], attention(CASES["test_attention_4d"], wrong)) == []
