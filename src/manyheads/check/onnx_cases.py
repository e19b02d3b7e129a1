"""ONNX's own node cases of `Attention` as problems: made in process by the installed onnx package, with its answers.

Where ONNX differs from us (docs/check.md): its causal frontier starts after the past or at the top-left corner, its left
window W is W + 1 keys, and a mask shorter than the key axis blocks the rest.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from manyheads.check.problem import Problem
from manyheads.ops import masks

__all__ = ["OnnxCase", "collect"]


@dataclass(frozen=True, eq=False)
class OnnxCase:
    """One case: the problem it is, and the output that onnx's reference code gives, (b, h, t, v)."""

    name: str
    problem: Problem
    expected: Tensor


@cache
def collect() -> tuple[OnnxCase, ...]:
    """The plain cases of `Attention`; those "expanded" are the same with the operator written out."""
    import numpy as np
    from onnx.backend.test.case import node

    state = np.random.get_state()  # onnx seeds numpy's generator as it makes its cases
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module("onnx.backend.test.case.node.attention")
    np.random.set_state(state)
    made = node._NodeTestCases  # its public collector makes the cases of every operator first, half a minute of work
    plain = (case for case in made if case.model.graph.node[0].op_type == "Attention" and "expanded" not in case.name)
    return tuple(_read(case) for case in plain)


def _read(case: Any) -> OnnxCase:
    import onnx
    from onnx.helper import get_attribute_value

    operation = case.model.graph.node[0]
    schema = onnx.defs.get_schema("Attention")
    names = [formal.name for formal, name in zip(schema.inputs, operation.input, strict=False) if name]
    given = {name: _tensor(array) for name, array in zip(names, case.data_sets[0][0], strict=True)}
    has = {item.name: get_attribute_value(item) for item in operation.attribute}
    expected = _tensor(case.data_sets[0][1][0])
    q, k, v = given["Q"], given["K"], given["V"]
    if q.dim() == 3:
        heads, kv_heads = has["q_num_heads"], has["kv_num_heads"]
        q, k, v, expected = _split(q, heads), _split(k, kv_heads), _split(v, kv_heads), _split(expected, heads)
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k, v = torch.cat((given["past_key"], k), 2), torch.cat((given["past_value"], v), 2)
    return OnnxCase(case.name, _problem(q, k, v, given, has, past), expected)


def _problem(
    q: Tensor, k: Tensor, v: Tensor, given: Mapping[str, Tensor], has: Mapping[str, Any], past: int
) -> Problem:
    (b, h, t, _), s = q.shape, k.shape[2]
    rule, bias, causal = masks.everything(), None, bool(has.get("is_causal"))
    mask, valid = given.get("attn_mask"), given.get("nonpad_kv_seqlen")
    left, right = has.get("left_window_size", -1), has.get("right_window_size", -1)
    if left >= 0:
        rule = rule & (masks.window(left + 1) | ~masks.causal())
    if right >= 0:
        rule = rule & (masks.band(right) | masks.causal())
    if valid is not None:
        rule = rule & masks.lengths(valid)
    if mask is not None and mask.dtype == torch.bool:
        rule = rule & masks.dense(pad(mask, (0, s - mask.shape[-1]), value=False))
    elif mask is not None:
        bias = pad(mask, (0, s - mask.shape[-1]), value=-torch.inf)
        bias = bias[(None,) * (4 - bias.dim())]
    offset = past if valid is None else valid - t
    plain = causal and isinstance(offset, int) and offset == s - t
    if causal and not plain:
        rule = rule & masks.causal()
    seen = masks.materialise(rule, batch=b, heads=h, queries=t, keys=s, offset=offset)
    return Problem(
        q=q, k=k, v=v, causal=plain, visible=None if bool(seen.all()) else _narrow(seen), bias=bias,
        scale=has.get("scale"), softcap=has.get("softcap") or None,
    )  # fmt: skip


def _narrow(mask: Tensor) -> Tensor:
    """Batch and head axes of 1 where nothing differs along them."""
    for axis in (0, 1):
        first = mask.narrow(axis, 0, 1)
        if bool((mask == first).all()):
            mask = first
    return mask


def _split(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _tensor(array: Any) -> Tensor:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.astype("float32")).bfloat16()
    return torch.from_numpy(array.copy())
