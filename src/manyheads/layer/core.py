"""The middle of a softmax layer: one call of attention by the backend that was asked for, everything but q, k, v bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from manyheads.layer.backends import select
from manyheads.layer.dispatch import attend, run
from manyheads.ops import sdpa, softmax
from manyheads.ops.call import AttentionCall

__all__ = ["Core"]

_ONNX_FLOAT = 1  # ONNX's number for float32


class Core:
    """Attention (b, h, t, v) on (b, h, t, q), (b, k, s, q), (b, k, s, v), called as the latent forms call it.

    `terms` are the keyword arguments of `AttentionCall.checked`. `weights` holds the probabilities of the call, if wanted:
    then it is written out.
    """

    def __init__(self, *, backend: str, want_weights: bool, terms: dict[str, Any]) -> None:
        self.want_weights, self.terms = want_weights, terms
        self.weights: Tensor | None = None
        self._backend = backend

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
        call = AttentionCall.checked(q, k, v, **self.terms, sizes_later=True)
        if self.want_weights:
            if call.is_one_step_of_a_graph:
                call.check_sizes()
            out, self.weights = softmax.run_with_weights(call.materialized())
            return out
        if call.softcap is not None and call.sinks is None and torch.onnx.is_in_onnx_export():
            return _as_onnx(call)
        return attend(call, self._backend)

    def by_kernel(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
        """The same where the decode kernel is selected, else None."""
        if self.want_weights:
            return None
        call = AttentionCall.checked(q, k, v, **self.terms, sizes_later=True)
        return run("kernel", call) if select(call, self._backend).name == "kernel" else None


def _as_onnx(call: AttentionCall) -> Tensor:
    """ONNX's own Attention (opset 23), which knows a softcap and is the only one of torch's operators that does. Older
    opsets take a program that torch.export made before: nothing here can know which is asked for.
    """
    q, k, v, at = call.q, call.k, call.v, call.all_pairs()
    mask = call.visible.tile(at)
    if call.bias is not None:
        bias = call.bias if isinstance(call.bias, Tensor) else call.bias.tile(at, q.dtype)
        mask = torch.where(mask, bias.to(q.dtype), -torch.inf)
    mask = mask.expand(*mask.shape[:2], q.shape[2], k.shape[2])
    # torch's stand-in for the operator takes values to be as wide as keys: zeros change no product
    width = max(k.shape[3], v.shape[3])
    wide_q, wide_k, wide_v = (pad(x, (0, width - x.shape[3])) if x.shape[3] < width else x for x in (q, k, v))
    out = torch.onnx.ops.attention(
        wide_q, wide_k, wide_v, mask, scale=call.scale, softcap=call.softcap or 0.0, softmax_precision=_ONNX_FLOAT
    )[0]
    return sdpa.exported_zeros(out[..., : v.shape[3]], mask, call)
