"""The core of multi-head latent attention, twice: expanded to heads, and absorbed into one shared head.

    expanded   k_h = [W_k_up,h c ; r],  v_h = W_v_up,h c            for prefill: c + r kept, H heads made of it
    absorbed   q~_h = W_k_up,h^T q_h;  logits = q~_h · c + q_rope,h · r;  y_h = W_v_up,h (A_h c)      for decode

Both compute the same function (c: latent after its norm, r: rotary key after its turn). Source: arXiv 2405.04434,
section 2.1.2 and appendix C; facts.md 4.3 has the crossover.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops import softmax
from manyheads.ops.masks import Visible
from manyheads.ops.precision import as_autocast

__all__ = ["absorbed", "expand", "expanded"]

Form = Callable[..., Tensor]


def expanded(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_k_up: Tensor,
    w_v_up: Tensor,
    *,
    scale: float,
    visible: Visible | Tensor | None = None,
    offset: int | Tensor | None = None,
    form: Form = softmax.attention,
) -> Tensor:
    """Attention (b, h, t, v) of q (b, h, t, d + r) over the latent (b, s, c) and rotary key (b, s, r), heads made first.

    w_k_up (h, d, c), w_v_up (h, v, c). `scale` is 1/sqrt(d + r), times what YaRN asks for: never 1/sqrt(c + r).
    `form`: which form of softmax attention does the rest.
    """
    _check(q_nope, q_rope, latent, k_rope, w_k_up, w_v_up)
    k, v = expand(latent, k_rope, w_k_up, w_v_up)
    q, k, v = as_autocast(torch.cat((q_nope, q_rope), -1), k, v)
    return form(q, k, v, scale=scale, visible=visible, offset=offset)


def expand(latent: Tensor, k_rope: Tensor, w_k_up: Tensor, w_v_up: Tensor) -> tuple[Tensor, Tensor]:
    """Keys (b, h, s, d + r) and values (b, h, s, v) of all heads, from what is kept."""
    k_nope = torch.einsum("bsc,hdc->bhsd", latent, w_k_up)
    shared = k_rope[:, None].expand(-1, w_k_up.shape[0], -1, -1)
    return torch.cat((k_nope, shared), -1), torch.einsum("bsc,hvc->bhsv", latent, w_v_up)


def absorbed(
    q_nope: Tensor,
    q_rope: Tensor,
    latent: Tensor,
    k_rope: Tensor,
    w_k_up: Tensor,
    w_v_up: Tensor,
    *,
    scale: float,
    visible: Visible | Tensor | None = None,
    offset: int | Tensor | None = None,
    form: Form = softmax.attention,
) -> Tensor:
    """The same function as `expanded` without making keys or values: multi-query attention over the latent itself."""
    _check(q_nope, q_rope, latent, k_rope, w_k_up, w_v_up)
    q = torch.cat((torch.einsum("bhtd,hdc->bhtc", q_nope, w_k_up), q_rope), -1)
    q, k, v = as_autocast(q, torch.cat((latent, k_rope), -1)[:, None], latent[:, None])
    mixed = form(q, k, v, scale=scale, visible=visible, offset=offset)
    return torch.einsum("bhtc,hvc->bhtv", mixed, w_v_up)


def _check(q_nope: Tensor, q_rope: Tensor, latent: Tensor, k_rope: Tensor, w_k_up: Tensor, w_v_up: Tensor) -> None:
    if latent.dim() != 3 or k_rope.shape[:-1] != latent.shape[:-1]:
        raise SpecError(
            "latent (batch, keys, rank) and k_rope (batch, keys, rope_dim) must agree; found "
            f"{tuple(latent.shape)} and {tuple(k_rope.shape)}"
        )
    if q_nope.dim() != 4 or q_rope.shape != (*q_nope.shape[:-1], k_rope.shape[-1]):
        raise SpecError(
            f"q_rope must be {(*q_nope.shape[:-1], k_rope.shape[-1])}, as q_nope and k_rope have it; "
            f"found {tuple(q_rope.shape)}"
        )
    heads, nope, rank = q_nope.shape[1], q_nope.shape[-1], latent.shape[-1]
    if tuple(w_k_up.shape) != (heads, nope, rank):
        raise SpecError(f"w_k_up must be (heads, nope_dim, rank) {(heads, nope, rank)}, found {tuple(w_k_up.shape)}")
    if w_v_up.dim() != 3 or (w_v_up.shape[0], w_v_up.shape[2]) != (heads, rank):
        raise SpecError(
            f"w_v_up must be (heads, v_head_dim, rank), ({heads}, any, {rank}), found {tuple(w_v_up.shape)}"
        )
