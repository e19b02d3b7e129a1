"""Peers from other packages, as they ship: transformers' eager attention and onnxruntime's GroupQueryAttention."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from manyheads.bench.paths import Call, Path, copies, floating
from manyheads.bench.rotation import Step
from manyheads.bench.shape import Shape
from manyheads.ops.answer import Answer, No, Yes

__all__ = ["EAGER", "ONNXRUNTIME", "eager", "missing", "onnxruntime_gqa"]

_PACKAGES = {"llama_cpp": "llama-cpp-python"}  # where one brings a module of another name

EAGER = "transformers eager"
ONNXRUNTIME = "onnxruntime GroupQueryAttention"


def missing(*modules: str) -> str:
    """Which of these modules is not installed, and the command that brings it; "" where all are."""
    absent = [_PACKAGES.get(module, module) for module in modules if find_spec(module) is None]
    are = "is" if len(absent) == 1 else "are"
    return f"{' and '.join(absent)} {are} not installed: pip install {' '.join(absent)}" if absent else ""


def eager(threads: int) -> Path:
    """`eager_attention_forward` of transformers' Llama: repeats the KV heads, then two products and a softmax."""

    def supports(shape: Shape) -> Answer:
        if absent := missing("transformers"):
            return No(absent)
        return floating(shape) and copies(shape.copy_bytes(heads=shape.heads))

    def prepare(step: Step) -> Call:
        from transformers.models.llama.modeling_llama import eager_attention_forward

        module: Any = SimpleNamespace(num_key_value_groups=step.q.shape[1] // step.k.shape[1], training=False)
        scale, mask = step.q.shape[3] ** -0.5, _mask(step)
        return lambda: eager_attention_forward(module, step.q, step.k, step.v, mask, scale)[0].transpose(1, 2)

    return Path(EAGER, EAGER, threads, supports, prepare)


def _mask(step: Step) -> Tensor | None:
    """What transformers hands over: nothing for a single new token, else 0 and the least number of the type."""
    queries, keys = step.q.shape[2], step.k.shape[2]
    if queries == 1:
        return None
    hidden = torch.ones(queries, keys, dtype=torch.bool).triu_(keys - queries + 1)
    return torch.zeros(1, 1, queries, keys, dtype=step.q.dtype).masked_fill_(hidden, torch.finfo(step.q.dtype).min)


def onnxruntime_gqa(threads: int) -> Path:
    """com.microsoft.GroupQueryAttention on the CPU, its cache a buffer that past and present share: nothing is copied."""

    def supports(shape: Shape) -> Answer:
        if absent := missing("onnxruntime", "onnx"):  # the graph that it runs is written with onnx
            return No(absent)
        if shape.dtype not in ("fp32", "fp16"):
            return No(f"on a CPU it takes fp32 and fp16, not {shape.dtype}")
        if shape.head_dim != shape.v_head_dim:
            return No("its keys and values have one size")
        return Yes() if shape.queries == 1 else No("timed for single new tokens only")

    return Path(ONNXRUNTIME, ONNXRUNTIME, threads, supports, lambda step: _bound(step, threads))


def _bound(step: Step, threads: int) -> Call:
    """A call on the memory of `step`. The operator writes the newest key into the cache, where it already stands."""
    import numpy as np

    (_, heads, _, size), (kv_heads, keys) = step.q.shape, step.k.shape[1:3]
    kind = np.float32 if step.q.dtype == torch.float32 else np.float16
    session = _session(heads, kv_heads, size, keys, str(np.dtype(kind)), threads)
    binding = session.io_binding()
    out = torch.empty(1, 1, heads * size, dtype=step.q.dtype)
    inputs = {
        "query": step.q.reshape(1, 1, -1),
        "key": step.k[:, :, -1].reshape(1, 1, -1).clone(),
        "value": step.v[:, :, -1].reshape(1, 1, -1).clone(),
        "past_key": step.k,
        "past_value": step.v,
        "seqlens_k": torch.tensor([keys - 1], dtype=torch.int32),
        "total_sequence_length": torch.tensor([keys], dtype=torch.int32),
    }
    outputs = {"output": out, "present_key": step.k, "present_value": step.v}
    for name, x in inputs.items():
        element = np.int32 if x.dtype == torch.int32 else kind
        binding.bind_input(name, "cpu", 0, element, list(x.shape), x.data_ptr())
    for name, x in outputs.items():
        binding.bind_output(name, "cpu", 0, kind, list(x.shape), x.data_ptr())

    def call(held: dict[str, Tensor] = inputs) -> Tensor:
        session.run_with_iobinding(binding)
        assert held
        return out.view(1, heads, 1, size)

    return call


@cache
def _session(heads: int, kv_heads: int, size: int, keys: int, kind: str, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # Its threads spin while a call runs and not into the next path's.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    model = _model(heads, kv_heads, size, keys, kind)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _model(heads: int, kv_heads: int, size: int, keys: int, kind: str) -> bytes:
    """A graph of that one operator, as bytes."""
    from onnx import TensorProto, helper

    element = TensorProto.FLOAT if kind == "float32" else TensorProto.FLOAT16

    def value(name: str, *shape: int, of: int = element) -> Any:
        return helper.make_tensor_value_info(name, of, shape)

    cached = (1, kv_heads, keys, size)
    inputs = [
        value("query", 1, 1, heads * size), value("key", 1, 1, kv_heads * size), value("value", 1, 1, kv_heads * size),
        value("past_key", *cached), value("past_value", *cached), value("seqlens_k", 1, of=TensorProto.INT32),
        value("total_sequence_length", 1, of=TensorProto.INT32),
    ]  # fmt: skip
    outputs = [value("output", 1, 1, heads * size), value("present_key", *cached), value("present_value", *cached)]
    node = helper.make_node(
        "GroupQueryAttention", [x.name for x in inputs], [x.name for x in outputs], domain="com.microsoft",
        num_heads=heads, kv_num_heads=kv_heads, scale=size**-0.5,
    )  # fmt: skip
    graph = helper.make_graph([node], "decode", inputs, outputs)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return model
