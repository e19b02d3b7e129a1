"""The core of multi-head latent attention, twice: expanded to heads, and absorbed into one shared head.

    expanded   k_h = [W_k_up,h c ; r],  v_h = W_v_up,h c            for prefill: c + r kept, H heads made of it
    absorbed   q~_h = W_k_up,h^T q_h;  logits = q~_h · c + q_rope,h · r;  y_h = W_v_up,h (A_h c)      for decode

Both compute the same function (c: latent after its norm, r: rotary key after its rotation). Source: arXiv 2405.04434,
section 2.1.2 and appendix C; facts.md 4.3 has the crossover.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops import softmax
from manyheads.ops.deferred import DeferredTensor, StoredTensor, materialized, warn_once
from manyheads.ops.masks import Visible
from manyheads.ops.precision import as_autocast

__all__ = ["ExpandedHeads", "Latents", "absorbed", "expand", "expanded", "latents_of"]

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


class Latents:
    """Latents (b, 1, s, c) and rotary keys (b, 1, s, r) of one call, with the weights k_up (h, d, c) and v_up (h, v, c) that
    make heads of them: keys and values that a kernel need not make.

    `make` returns keys and values of all heads as the model that owns the weights makes them; None: as `expand` does.
    """

    def __init__(
        self,
        latent: Tensor,
        rotary: Tensor,
        k_up: Tensor,
        v_up: Tensor,
        make: Callable[[], tuple[Tensor, Tensor]] | None = None,
    ) -> None:
        self.latent, self.rotary, self.k_up, self.v_up, self._make = latent, rotary, k_up, v_up, make

    @property
    def is_absorbed_by_torch_too(self) -> bool:
        """Whether whoever made this has the absorbed form in torch as well, where a kernel does not take the call."""
        return self._make is None

    @property
    def rank(self) -> int:
        """c, the width of a latent."""
        return self.latent.shape[3]

    @cached_property
    def heads(self) -> tuple[Tensor, Tensor]:
        """Keys (b, h, s, d + r) and values (b, h, s, v) of all heads."""
        if self._make is not None:
            return self._make()
        return expand(materialized(self.latent)[:, 0], materialized(self.rotary)[:, 0], self.k_up, self.v_up)

    @cached_property
    def rows(self) -> Tensor:
        """[c ; r] of every token, (b, 1, s, c + r): read as they lie where a cache put them side by side."""
        latent, rotary = _as_stored(self.latent), _as_stored(self.rotary)
        width = latent.shape[3] + rotary.shape[3]
        adjacent = latent.data_ptr() + latent.shape[3] * latent.element_size() == rotary.data_ptr()
        if adjacent and latent.stride() == rotary.stride() and latent.dtype == rotary.dtype and latent.stride(3) == 1:
            return latent.as_strided((*latent.shape[:3], width), latent.stride())
        return torch.cat((latent, rotary), 3)

    def absorbed_shapes(self, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, rows and values with the shapes, dtypes and strides that a kernel would be given; not their elements."""
        return q.new_empty(()).expand(*q.shape[:3], self.rows.shape[3]), self.rows, self.rows[..., : self.rank]

    def deferred(self) -> tuple[ExpandedHeads, ExpandedHeads]:
        """Keys and values of all heads, made only if somebody asks for their elements."""
        keys, values = self.k_up.shape[1] + self.rotary.shape[3], self.v_up.shape[1]
        return ExpandedHeads(self, 0, keys, self.latent.dtype), ExpandedHeads(self, 1, values, self.latent.dtype)


class ExpandedHeads(DeferredTensor):
    """Keys or values of all heads, (b, h, s, d), that would be made of latents."""

    what = "an MLA cache whose heads have not been made"
    latents: Latents
    part: int

    @staticmethod
    def __new__(cls: type, latents: Latents, part: int, width: int, dtype: torch.dtype) -> ExpandedHeads:
        """`part` 0: keys, 1: values; `dtype`: what it is to look like."""
        b, _, s, _ = latents.latent.shape
        shape = (b, latents.k_up.shape[0], s, width)
        made: Any = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=latents.latent.device)
        made.latents, made.part = latents, part
        return made

    def materialized(self) -> Tensor:
        """As `Latents.heads` makes them."""
        return self.latents.heads[self.part].to(self.dtype)

    def with_dtype(self, dtype: torch.dtype) -> ExpandedHeads:
        """The same heads, of another dtype."""
        return ExpandedHeads(self.latents, self.part, self.shape[3], dtype)


def latents_of(k: Tensor, v: Tensor) -> Latents | None:
    """What keys and values would be made of, where that is one and the same `Latents`."""
    same = isinstance(k, ExpandedHeads) and isinstance(v, ExpandedHeads) and k.latents is v.latents
    return k.latents if same and (k.part, v.part) == (0, 1) else None  # type: ignore[attr-defined]


def _as_stored(x: Tensor) -> Tensor:
    """The tensor that a kernel can read: as it is stored, but for int8, whose two scales it could not tell apart."""
    if isinstance(x, StoredTensor) and x.scales is not None:
        warn_once(
            "manyheads: an int8 cache of latents is dequantized at every step: latent and rotary key have a scale each"
        )
        return x.materialized()
    return x.numbers if isinstance(x, StoredTensor) else x
