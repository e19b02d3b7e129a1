"""`manyheads::attend_last`: attention of one new query a sequence, as one node of a compiled graph.

A graph serves a cache of any length, and which form is the quickest depends on the length. So the graph does not choose: it
calls this operator, and that does what is done without a graph, at the lengths that it meets.
"""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor, nn

from manyheads.models.door.call import Call
from manyheads.ops import masks
from manyheads.ops.bias import Alibi
from manyheads.ops.deferred import Packed
from manyheads.ops.predicates import Causal, Everything, Visible, Window

__all__ = ["attend_last"]

_NOBODY = nn.Identity()  # the forms of the door do not ask whose call it is


@torch.library.custom_op("manyheads::attend_last", mutates_args=())
def _operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    mask: Optional[Tensor],  # noqa: UP045 - the schema is read from this text
    window: Optional[int],  # noqa: UP045
    bias: Optional[Tensor],  # noqa: UP045
    slopes: Optional[Tensor],  # noqa: UP045
    softcap: Optional[float],  # noqa: UP045
    sinks: Optional[Tensor],  # noqa: UP045
    k_scale: Optional[Tensor],  # noqa: UP045
    v_scale: Optional[Tensor],  # noqa: UP045
    is_rotated: bool,  # noqa: FBT001 - operators of torch take it by place
) -> Tensor:
    from manyheads.models.door.backends import FORMS

    keys = k if k.dtype == q.dtype else Packed(k, k_scale, q.dtype, is_rotated=is_rotated)
    values = v if v.dtype == q.dtype else Packed(v, v_scale, q.dtype)
    # detached: what was read of a mask is noted on it, and a compiled graph may write another into the same tensor
    seen = None if mask is None else mask.detach()
    visible = seen if window is None else masks.window(window)
    added = bias if slopes is None else Alibi(slopes)
    call = Call(_NOBODY, "", -1, q, keys, values, scale, visible, added, softcap, sinks)  # type: ignore[arg-type]
    return FORMS["auto"](call).contiguous()


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:  # noqa: ARG001 - the schema names them
    return q.new_empty((*q.shape[:3], v.shape[3]))


def attend_last(call: Call) -> Tensor:
    """(b, h, 1, v) of a call with one query, in a graph."""
    k, v, bias = call.k, call.v, call.bias
    mask, window = _seen(call.visible, call)
    slopes = bias.slopes if isinstance(bias, Alibi) else None
    packed = isinstance(k, Packed), isinstance(v, Packed)
    return _operator(
        call.q, k.numbers if packed[0] else k, v.numbers if packed[1] else v, call.scale, mask, window,
        None if slopes is not None else bias, slopes, call.softcap, call.sinks,
        k.scales if packed[0] else None, v.scales if packed[1] else None, packed[0] and k.is_rotated,
    )  # fmt: skip


def _seen(visible: Visible | Tensor | None, call: Call) -> tuple[Tensor | None, int | None]:
    """(mask, window) of what the last query of all sees."""
    if visible is None or isinstance(visible, Tensor):
        return visible, None
    if isinstance(visible, Everything | Causal):
        return None, None
    if isinstance(visible, Window):
        return None, visible.keys
    (b, h, t, _), s = call.q.shape, call.k.shape[2]
    return masks.materialise(visible, batch=b, heads=h, queries=t, keys=s, device=call.q.device), None
