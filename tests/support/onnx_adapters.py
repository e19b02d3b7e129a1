"""ONNX's operators said through ours: what each attribute and input means here. Each returns outputs by ONNX's names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from manyheads.ops import linear, masks, rope, softmax
from support.onnx_cases import Case

__all__ = ["attention", "linear_attention", "rotary_embedding"]

STAGES = ("scaled", "capped", "masked", "probabilities")


def attention(case: Case, form: Callable[..., Tensor] = softmax.attention) -> dict[str, Tensor]:
    """`Attention`, opsets 23 to 25, through one form of softmax attention."""
    given, has = case.inputs, case.attributes
    q, k, v = given["Q"], given["K"], given["V"]
    packed = q.dim() == 3
    if packed:
        heads, kv_heads = has["q_num_heads"], has["kv_num_heads"]
        q, k, v = _split(q, heads), _split(k, kv_heads), _split(v, kv_heads)
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k, v = torch.cat((given["past_key"], k), 2), torch.cat((given["past_value"], v), 2)
    asked = {
        "scale": has.get("scale", q.shape[-1] ** -0.5),
        "softcap": has.get("softcap") or None,
        **_masks(case, queries=q.shape[2], keys=k.shape[2], past=past),
    }
    out = form(q, k, v, **asked)
    stage = STAGES[has.get("qk_matmul_output_mode", 0)]
    return {
        "Y": out.transpose(1, 2).flatten(2) if packed else out,
        "present_key": k,
        "present_value": v,
        "qk_matmul_output": softmax.scores(q, k, stage=stage, **asked),
    }


def _masks(case: Case, *, queries: int, keys: int, past: int) -> dict[str, object]:
    """ONNX counts a call's queries from the past's length, from the valid length, or from 0 (top-left): our offset.

    Its windows are bounds relative to the query, left W meaning W keys before it: our window of W + 1. A mask shorter
    than the key axis blocks the rest.
    """
    has, mask, valid = case.attributes, case.inputs.get("attn_mask"), case.inputs.get("nonpad_kv_seqlen")
    visible, bias = masks.everything(), None
    if has.get("is_causal"):
        visible = visible & masks.causal()
    left, right = has.get("left_window_size", -1), has.get("right_window_size", -1)
    if left >= 0:
        visible = visible & (masks.window(left + 1) | ~masks.causal())
    if right >= 0:
        visible = visible & (masks.band(right) | masks.causal())
    if valid is not None:
        visible = visible & masks.lengths(valid)
    if mask is not None and mask.dtype == torch.bool:
        visible = visible & masks.dense(pad(mask, (0, keys - mask.shape[-1]), value=False))
    elif mask is not None:
        bias = pad(mask, (0, keys - mask.shape[-1]), value=-torch.inf)
    return {"visible": visible, "bias": bias, "offset": past if valid is None else valid - queries}


def rotary_embedding(case: Case) -> dict[str, Tensor]:
    """`RotaryEmbedding`, opset 23."""
    given, has = case.inputs, case.attributes
    x, cos, sin = given["X"], given["cos_cache"], given["sin_cache"]
    if "position_ids" in given:
        cos, sin = cos[given["position_ids"]], sin[given["position_ids"]]
    packed = x.dim() == 3
    x = _split(x, has["num_heads"]) if packed else x
    out = rope.apply(x, cos, sin, "interleaved" if has.get("interleaved") else "halves")
    return {"Y": out.transpose(1, 2).flatten(2) if packed else out}


def linear_attention(case: Case, form: Callable[..., tuple[Tensor, linear.LinearState]]) -> dict[str, Tensor]:
    """`LinearAttention`, opset 27, through one of the three forms; ONNX's `linear` is our `sum`."""
    given, has = case.inputs, case.attributes
    q = _split(given["query"], has["q_num_heads"])
    k, v = (_split(given[name], has["kv_num_heads"]) for name in ("key", "value"))
    decay, beta, past = given.get("decay"), given.get("beta"), given.get("past_state")
    if decay is not None:
        decay = _split(decay, has["kv_num_heads"])
    out, state = form(
        q, k, v,
        rule=has.get("update_rule", "gated_delta").replace("linear", "sum"),
        scale=has.get("scale") or q.shape[-1] ** -0.5,
        decay=decay,
        beta=None if beta is None else beta.transpose(1, 2),
        state=None if past is None else linear.LinearState(past),
    )  # fmt: skip
    present = state.sums.to(q.dtype if past is None else past.dtype)
    return {"output": out.transpose(1, 2).flatten(2), "present_state": present}


def _split(x: Tensor, heads: int) -> Tensor:
    """(b, t, h·d) -> (b, h, t, d)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)
