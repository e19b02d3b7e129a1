"""Attention weighted by what it carries: |p_ij f(v_j)|, the norm of what a query takes from a key.

A head may give nearly all its attention to a key whose value is nearly nothing (the first token, often): its probabilities
then say little about what it does. Source: Kobayashi et al., arXiv 2004.10102, section 3.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError

__all__ = ["norm_weighted", "value_norms"]


def value_norms(v: Tensor, o: Tensor | None = None) -> Tensor:
    """|v_j W_h| for each query head, (b, h, s); |v_j| where the output projection `o` is None.

    v (b, k, s, v), o (h, v, d): each head's rows of the output projection. |x W|² = x (W Wᵀ) xᵀ, so that neither (b, h, s, d)
    nor anything larger is ever held. Raises ManyheadsError where shapes do not fit.
    """
    if v.dim() != 4:
        raise ManyheadsError(f"values {tuple(v.shape)}; expected (batch, key/value heads, keys, size)")
    v = v if v.dtype == torch.float64 else v.float()
    if o is None:
        return torch.linalg.vector_norm(v, dim=-1)
    kv_heads, heads = v.shape[1], o.shape[0]
    if o.dim() != 3 or heads % kv_heads or o.shape[1] != v.shape[3]:
        raise ManyheadsError(
            f"o {tuple(o.shape)} does not fit values {tuple(v.shape)}; expected (heads, {v.shape[3]}, d_model), heads a "
            f"multiple of {kv_heads}"
        )
    o = o.to(v.dtype)
    square = o @ o.mT
    norms = [
        ((v[:, h // (heads // kv_heads)] @ square[h]) * v[:, h // (heads // kv_heads)]).sum(-1) for h in range(heads)
    ]
    return torch.stack(norms, 1).clamp_min(0).sqrt()


def norm_weighted(weights: Tensor, v: Tensor, o: Tensor | None = None) -> Tensor:
    """|p_ij v_j W_h| (b, h, t, s) of probabilities (b, h, t, s); p is a factor, so the norm of each key is taken once.

    Raises ManyheadsError where shapes do not fit.
    """
    norms = value_norms(v, o)
    b, heads, keys = norms.shape
    fits = weights.dim() == 4 and (weights.shape[0], weights.shape[3]) == (b, keys)
    if not fits or weights.shape[1] % heads or (o is not None and weights.shape[1] != heads):
        raise ManyheadsError(
            f"weights {tuple(weights.shape)} do not fit values {tuple(v.shape)}; expected ({b}, heads, queries, {keys}), heads "
            + (f"a multiple of {heads}" if o is None else f"{heads} as in o")
        )
    return weights * norms.repeat_interleave(weights.shape[1] // heads, dim=1)[:, :, None]
