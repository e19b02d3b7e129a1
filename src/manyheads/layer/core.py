"""The middle of a softmax layer: one call of attention by the form that was asked for, everything but q, k, v bound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from manyheads.ops import sdpa, softmax, tiled
from manyheads.ops.bias import Additive
from manyheads.ops.predicates import Visible

__all__ = ["BACKENDS", "Core"]

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
        if not self.want_weights:
            out = self._form(q, k, v, scale=scale, visible=visible, offset=offset, **self._bound)
            assert isinstance(out, Tensor)
            return out
        out, self.weights = softmax.attention(
            q, k, v, scale=scale, visible=visible, offset=offset, return_weights=True, **self._bound
        )
        return out


def _form(backend: str, *, capped: bool, want_weights: bool) -> Any:
    if backend == "plain" or want_weights or (backend == "auto" and capped and torch.compiler.is_compiling()):
        return softmax.attention
    return tiled.attention if backend == "tiled" else sdpa.attention
