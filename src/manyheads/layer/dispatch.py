"""A call of attention, computed by the backend that is selected for it.

    out = attend(call)                 # (b, h, t, v)

`manyheads::attend_last` is attention of one new query a sequence, as one node of a compiled graph. A graph serves a cache of
any length, and which backend is the quickest depends on the length. So the graph does not choose: it calls this operator,
and that does what is done without a graph, at the lengths that it meets.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from manyheads.kernels import backend as kernel
from manyheads.layer.backends import BACKENDS, select
from manyheads.ops.bias import Additive, Alibi
from manyheads.ops.call import AttentionCall
from manyheads.ops.deferred import StoredTensor
from manyheads.ops.predicates import Causal, Dense, Everything, Visible, Window

__all__ = ["attend", "attend_last", "run"]


def attend(call: AttentionCall, backend: str = "auto") -> Tensor:
    """The output (b, h, t, v) of a call, by a backend of `NAMES` as `select` has it."""
    return run(select(call, backend).name, call)


def run(name: str, call: AttentionCall) -> Tensor:
    """The output (b, h, t, v) of a call by a backend that supports it. In a graph the kernel stands for whatever is the
    quickest where the graph runs."""
    if name == "kernel":
        return attend_last(call) if torch.compiler.is_compiling() else kernel.run(call)
    if call.is_one_step_of_a_graph:
        call.check_sizes()
    return BACKENDS[name].run(call.materialized())


@torch.library.custom_op("manyheads::attend_last", mutates_args=())
def _operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Optional[Tensor],  # noqa: UP045 - the schema is read from this text
    causal: bool,  # noqa: FBT001 - operators of torch take it by place
    window: Optional[int],  # noqa: UP045
    bias: Optional[Tensor],  # noqa: UP045
    slopes: Optional[Tensor],  # noqa: UP045
    softcap: Optional[float],  # noqa: UP045
    sinks: Optional[Tensor],  # noqa: UP045
    offset: Optional[Tensor],  # noqa: UP045
    start: int,
    k_scale: Optional[Tensor],  # noqa: UP045
    v_scale: Optional[Tensor],  # noqa: UP045
    is_rotated: bool,  # noqa: FBT001
) -> Tensor:
    keys = k if k.dtype == q.dtype else StoredTensor(k, k_scale, q.dtype, is_rotated=is_rotated)
    values = v if v.dtype == q.dtype else StoredTensor(v, v_scale, q.dtype)
    visible: Visible = Causal() if causal else Everything()
    if window is not None:
        visible = Window(window)
    if (
        mask is not None
    ):  # detached: what was read of it is noted on it, and a graph may write another into the same tensor
        visible = Dense(mask.detach())
    added = bias if slopes is None else Alibi(slopes)
    at = start if offset is None else offset
    call = AttentionCall.checked(
        q, keys, values, scale=scale, visible=visible, bias=added, softcap=softcap, sinks=sinks, offset=at
    )
    return attend(call).contiguous()


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:  # noqa: ARG001 - the schema names them
    return q.new_empty((*q.shape[:3], v.shape[3]))


def attend_last(call: AttentionCall) -> Tensor:
    """The output (b, h, 1, v) of a call with one query, in a graph."""
    k, v, bias, visible = call.k, call.v, call.bias, call.visible
    by_position = isinstance(visible, Causal | Window) or isinstance(bias, Alibi)
    offset, start = (call.offset, 0) if isinstance(call.offset, Tensor) else (None, call.offset if by_position else 0)
    mask, window = None, visible.keys if isinstance(visible, Window) else None
    if isinstance(visible, Dense):
        mask = visible.mask
    elif not isinstance(visible, Everything | Causal | Window):
        mask = visible.tile(call.all_pairs()).expand(-1, -1, 1, k.shape[2])
    slopes = bias.slopes if isinstance(bias, Alibi) else None
    if isinstance(bias, Additive):
        bias = None if slopes is not None else bias.tile(call.all_pairs(), torch.float32)
    packed = isinstance(k, StoredTensor), isinstance(v, StoredTensor)
    return _operator(
        call.q, k.numbers if packed[0] else k, v.numbers if packed[1] else v, call.scale, mask,
        isinstance(visible, Causal), window, bias, slopes, call.softcap, call.sinks, offset, start,
        k.scales if packed[0] else None, v.scales if packed[1] else None, packed[0] and k.is_rotated,
    )  # fmt: skip
