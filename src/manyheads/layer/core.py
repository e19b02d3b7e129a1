"""The middle of a softmax layer: one call of attention by the form that was asked for, everything but q, k, v bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from manyheads.ops import sdpa, softmax, tiled
from manyheads.ops.bias import Additive
from manyheads.ops.call import AttentionCall
from manyheads.ops.predicates import Visible

__all__ = ["BACKENDS", "Core"]

_ONNX_FLOAT = 1  # ONNX's number for float32
BACKENDS = ("auto", "plain", "tiled", "sdpa")


class Core:
    """Attention on (b, h, t, q), (b, k, s, q), (b, k, s, v), called as the latent forms call it.

    "auto": written out where weights are wanted, else torch's SDPA where it computes the same function, else tiles (in a
    compiled graph written out, which the compiler fuses). `weights` holds the probabilities of the call, if wanted.
    """

    def __init__(
        self,
        *,
        backend: str,
        want_weights: bool,
        bias: Tensor | Additive | None,
        softcap: float | None,
        sinks: Tensor | None,
        dropout: float,
    ) -> None:
        self.want_weights = want_weights
        self.weights: Tensor | None = None
        self._form = _form(backend, capped=softcap is not None or sinks is not None, want_weights=want_weights)
        self._bias, self._softcap, self._sinks = bias, softcap, sinks
        self._bound: dict[str, Any] = {"bias": bias, "softcap": softcap, "sinks": sinks, "dropout": dropout}

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        visible: Visible | Tensor | None,
        offset: int | Tensor | None,
    ) -> Tensor:
        if (
            self._softcap is not None
            and self._sinks is None
            and not self.want_weights
            and torch.onnx.is_in_onnx_export()
        ):
            return self._onnx(q, k, v, scale=scale, visible=visible, offset=offset)
        if not self.want_weights:
            out = self._form(q, k, v, scale=scale, visible=visible, offset=offset, **self._bound)
            assert isinstance(out, Tensor)
            return out
        out, self.weights = softmax.attention(
            q, k, v, scale=scale, visible=visible, offset=offset, return_weights=True, **self._bound
        )
        return out

    def _onnx(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        visible: Visible | Tensor | None,
        offset: int | Tensor | None,
    ) -> Tensor:
        """ONNX's own Attention (opset 23), which knows a softcap and is the only one of torch's operators that does. Older
        opsets take a program that torch.export made before: nothing here can know which is asked for.
        """
        call = AttentionCall.checked(
            q, k, v, scale=scale, visible=visible, bias=self._bias, softcap=self._softcap, offset=offset
        )
        at = call.all_pairs()
        mask = call.visible.tile(at)
        if self._bias is not None:
            bias = self._bias if isinstance(self._bias, Tensor) else self._bias.tile(at, q.dtype)
            mask = torch.where(mask, bias.to(q.dtype), -torch.inf)
        mask = mask.expand(*mask.shape[:2], q.shape[2], k.shape[2])
        # torch's stand-in for the operator takes values to be as wide as keys: zeros change no product
        width = max(k.shape[3], v.shape[3])
        wide_q, wide_k, wide_v = (pad(x, (0, width - x.shape[3])) if x.shape[3] < width else x for x in (q, k, v))
        out = torch.onnx.ops.attention(
            wide_q, wide_k, wide_v, mask, scale=scale, softcap=call.softcap or 0.0, softmax_precision=_ONNX_FLOAT
        )[0]
        return sdpa.exported_zeros(out[..., : v.shape[3]], mask, call)


def _form(backend: str, *, capped: bool, want_weights: bool) -> Any:
    if backend == "plain" or want_weights or (backend == "auto" and capped and torch.compiler.is_compiling()):
        return softmax.attention
    return tiled.attention if backend == "tiled" else sdpa.attention
