"""Multi-head attention as a textbook has it: one function, six lines, every weight used the same way."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.precision import in_full, wide
from manyheads.ops.softmax import probabilities
from manyheads.spec import check

__all__ = ["mha"]


def mha(
    x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, num_heads: int, visible: Tensor | None = None
) -> Tensor:
    """head_h = softmax(Q_h K_h^T / sqrt(d_k)) V_h;  y = [head_1 .. head_H] W_O;  (.., t, d_model).

    x        (.., t, d_model) tokens
    W_Q, W_K (d_model, H·d_k), W_V (d_model, H·d_v), W_O (H·d_v, d_model): tokens are multiplied from the right, as in
             the paper; d_k and d_v may differ, and H·d_v need not be d_model
    visible  (t, t) or (.., 1 or H, t, t) booleans, True = may attend; None: everything. A token that sees nothing: zeros

    Computed in float32, or float64 where x is, and rounded to the dtype of x once. Source: arXiv 1706.03762, section 3.2.2.
    """
    _check(x, W_Q, W_K, W_V, W_O, num_heads, visible)
    dtype = x.dtype
    x, W_Q, W_K, W_V, W_O = (each.to(wide(dtype)) for each in (x, W_Q, W_K, W_V, W_O))

    def split(tokens: Tensor) -> Tensor:
        return tokens.unflatten(-1, (num_heads, tokens.shape[-1] // num_heads)).transpose(-3, -2)  # (.., H, t, d)

    with in_full(x):
        Q, K, V = split(x @ W_Q), split(x @ W_K), split(x @ W_V)
        logits = Q @ K.mT / math.sqrt(Q.shape[-1])
        if visible is not None:
            logits = torch.where(visible, logits, -torch.inf)
        heads = probabilities(logits) @ V
        return (heads.transpose(-3, -2).flatten(-2) @ W_O).to(dtype)


def _check(
    x: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor, num_heads: int, visible: Tensor | None
) -> None:
    check.size("num_heads", num_heads)
    if x.dim() < 2 or not x.is_floating_point():
        raise SpecError(f"x must be floating tokens (.., t, d_model), found {x.dtype} {tuple(x.shape)}")
    d_model = x.shape[-1]
    for name, W in (("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V)):
        if W.dim() != 2 or W.shape[0] != d_model or W.shape[1] % num_heads:
            raise SpecError(f"{name} must be ({d_model}, a multiple of {num_heads} heads), found {tuple(W.shape)}")
    if W_Q.shape != W_K.shape:
        raise SpecError(f"W_Q and W_K must have one shape, found {tuple(W_Q.shape)} and {tuple(W_K.shape)}")
    if tuple(W_O.shape) != (W_V.shape[1], d_model):
        raise SpecError(f"W_O must be {(W_V.shape[1], d_model)}, found {tuple(W_O.shape)}")
    for name, W in (("W_Q", W_Q), ("W_K", W_K), ("W_V", W_V), ("W_O", W_O)):
        mixed = W.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type)
        if mixed or W.device != x.device:
            raise SpecError(
                f"{name} is {W.dtype} on {W.device}, x is {x.dtype} on {x.device}: convert one to the other"
            )
    if visible is not None:
        _check_mask(visible, x, num_heads)


def _check_mask(visible: Tensor, x: Tensor, num_heads: int) -> None:
    if visible.dtype != torch.bool:
        raise SpecError(f"visible must be boolean, True = may attend, found {visible.dtype}")
    *lead, count, _ = x.shape
    found, wanted = tuple(visible.shape), (*lead, num_heads, count, count)
    fits = all(size in (1, need) for size, need in zip(reversed(found), reversed(wanted), strict=False))
    if len(found) not in (2, len(wanted)) or not fits or found[-1] != count:
        hint = "; for three axes write visible[:, None] for one a sequence, visible[None] for one a head"
        raise SpecError(
            f"visible must be {(count, count)}, or {wanted} with sizes of 1 where it is the same (not the keys); found {found}"
            + (hint if len(found) == 3 else "")
        )
