"""The ways to compute a step of attention that are compared: ours, and torch's in every formulation that may be fastest.

A path says what it supports, prepares outside the clock what a real loop has ready as well (views, bindings), and returns
what is timed: a function of nothing that gives (1, h, t, v).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from manyheads.bench.paths import BEST_OF_TORCH, OURS, STOCK, Call, Path, copies, floating
from manyheads.bench.peers import eager, onnxruntime_gqa
from manyheads.bench.rotation import Step
from manyheads.bench.shape import Shape
from manyheads.kernels import attend
from manyheads.ops import sdpa, tiled
from manyheads.ops.answer import Answer, No
from manyheads.ops.dtypes import torch_dtype
from manyheads.ops.predicates import Causal

__all__ = ["decode_paths", "ours", "prefill_paths", "torch_paths"]


def decode_paths(threads: int) -> tuple[Path, ...]:
    """Ours, torch's five, transformers' eager and onnxruntime's, for a single new token."""
    return (ours(threads), *torch_paths(threads), eager(threads), onnxruntime_gqa(threads))


def prefill_paths(threads: int) -> tuple[Path, ...]:
    """The same for a whole prompt: ours is what the door takes, and the tiled operator for what torch has no function."""

    def causal(step: Step) -> Call:
        return lambda: scaled_dot_product_attention(
            step.q, step.k, step.v, is_causal=True, enable_gqa=_shares(step.q, step.k)
        )

    def form(name: str, attention: Callable[..., Tensor], family: str) -> Path:
        def prepare(step: Step) -> Call:
            return lambda: attention(step.q, step.k, step.v, scale=_scale(step), visible=Causal())

        return Path(name, family, threads, floating, prepare)

    return (
        form(f"{OURS} (through SDPA where that is the same)", sdpa.attention, OURS),
        form(f"{OURS}, tiled operator", tiled.attention, f"{OURS}, tiled operator"),
        Path(STOCK, STOCK, threads, floating, causal),
        eager(threads),
    )


def ours(threads: int) -> Path:
    """The decode kernel on `threads` threads."""

    def supports(shape: Shape) -> Answer:
        queries = torch.float32 if shape.dtype == "int8" else None
        probe = Step(*_empty(shape, queries))
        return attend.supports(probe.q, probe.k, probe.v)

    def prepare(step: Step) -> Call:
        keys = attend.Keys.causal(1, step.q.shape[2], step.k.shape[2])
        scale = _scale(step)
        return lambda: attend.decode(
            step.q, step.k, step.v, keys, scale=scale, k_scale=step.k_scale, v_scale=step.v_scale, threads=threads
        )

    return Path(OURS, OURS, threads, supports, prepare)


def torch_paths(threads: int) -> tuple[Path, ...]:
    """torch's own flag for groups, and four ways around it: the best of all five is what torch can do."""

    def path(name: str, supports: Callable[[Shape], Answer], run: Callable[[Step], Tensor]) -> Path:
        family = STOCK if name == STOCK else BEST_OF_TORCH
        return Path(name, family, threads, supports, lambda step: lambda: run(step))

    return (
        path(STOCK, floating, lambda step: scaled_dot_product_attention(
            step.q, step.k, step.v, enable_gqa=_shares(step.q, step.k)
        )),
        path("torch SDPA, a group's queries as rows", floating, lambda step: _unfold(
            scaled_dot_product_attention(_folded(step), step.k, step.v), step
        )),
        path("torch SDPA, rows, widened to fp32", _narrow, lambda step: _unfold(
            scaled_dot_product_attention(_folded(step).float(), step.k.float(), step.v.float()), step
        )),
        path("torch SDPA, KV heads repeated", _grouped, lambda step: scaled_dot_product_attention(
            step.q, _repeated(step.k, step), _repeated(step.v, step)
        )),
        path("torch matmul, a group's queries as rows", floating, _products),
    )  # fmt: skip


def _products(step: Step) -> Tensor:
    logits = torch.matmul(_folded(step) * _scale(step), step.k.mT)
    weights = torch.softmax(logits, -1, dtype=torch.float32).to(step.v.dtype)
    return _unfold(torch.matmul(weights, step.v), step)


def _folded(step: Step) -> Tensor:
    """(1, h, 1, q) as (1, k, g, q): the heads of a group as rows over the head that they share."""
    return step.q.view(1, step.k.shape[1], -1, step.q.shape[3])


def _unfold(out: Tensor, step: Step) -> Tensor:
    return out.reshape(1, step.q.shape[1], 1, out.shape[3]).to(step.q.dtype)


def _repeated(x: Tensor, step: Step) -> Tensor:
    return x.repeat_interleave(step.q.shape[1] // x.shape[1], 1)


def _scale(step: Step) -> float:
    return float(step.q.shape[3] ** -0.5)


def _shares(q: Tensor, k: Tensor) -> bool:
    return q.shape[1] != k.shape[1]


def _narrow(shape: Shape) -> Answer:
    if shape.dtype not in ("bf16", "fp16"):
        return floating(shape) and No("there is nothing to widen")
    return copies(shape.copy_bytes(width=4))


def _grouped(shape: Shape) -> Answer:
    if shape.group == 1:
        return floating(shape) and No("each query head has its own KV head")
    return floating(shape) and copies(shape.copy_bytes(heads=shape.heads))


def _empty(shape: Shape, queries: torch.dtype | None) -> tuple[Tensor, Tensor, Tensor]:
    """Tensors of these shapes that take no memory."""
    kind = torch_dtype(shape.dtype)
    one = torch.empty(1, dtype=kind)

    def wide(*size: int) -> Tensor:
        strides = (0,) * (len(size) - 1) + (1,)
        return torch.empty(size[-1], dtype=one.dtype).as_strided(size, strides)

    q = torch.empty(1, shape.heads, shape.queries, shape.head_dim, dtype=queries or kind)
    return (
        q, wide(1, shape.kv_heads, shape.keys, shape.head_dim), wide(1, shape.kv_heads, shape.keys, shape.v_head_dim)
    )  # fmt: skip
