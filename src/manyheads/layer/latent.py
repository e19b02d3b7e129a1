"""Latent attention: what is kept, the queries, and the choice between expanding and absorbing."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from manyheads.layer.backends import is_absorption_profitable
from manyheads.layer.caches.base import Kept
from manyheads.layer.core import Core
from manyheads.layer.heads import Rotation, projected
from manyheads.ops import latent as forms
from manyheads.ops.deferred import materialized
from manyheads.ops.norm import normalise
from manyheads.ops.precision import as_autocast
from manyheads.spec import Latent

__all__ = ["FORMS", "attend", "kept_parts", "queries"]

FORMS = ("auto", "expanded", "absorbed")


def queries(layer: nn.Module, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    """The parts of the queries without position (b, h, t, d) and with (b, h, t, r), rotated."""
    kv: Latent = layer.spec.kv
    if kv.q_rank:
        x = _normed(layer, linear(x, layer.q_down, getattr(layer, "q_down_bias", None)), "q_down_norm")
        q = projected(x, layer.q_up)
    else:
        q = projected(x, layer.q, getattr(layer, "q_bias", None))
    nope, rotary = q.split((kv.nope_dim, kv.rope_dim), -1)
    return nope, rotary if rotation is None else rotation(rotary)


def kept_parts(layer: nn.Module, source: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    """What a cache keeps: the latent after its norm (b, 1, s, c) and the rotary key after its rotation (b, 1, s, r)."""
    latent = _normed(layer, linear(source, layer.kv_down, getattr(layer, "kv_down_bias", None)), "kv_down_norm")[
        :, None
    ]
    if not layer.spec.kv.rope_dim:
        return latent, latent[..., :0]
    key = linear(source, layer.k_rope, getattr(layer, "k_rope_bias", None))[:, None]
    return latent, key if rotation is None else rotation(key)


def attend(layer: nn.Module, x: Tensor, kept: Kept, core: Core, *, rotation: Rotation | None, form: str) -> Tensor:
    """Heads (b, h, t, v): absorbed where the kernel is the quickest, which reads the latents as they are kept; else expanded
    or absorbed by torch, whichever takes fewer MACs."""
    nope, rotary = queries(layer, x, rotation)
    latent, key = materialized(kept.keys), materialized(kept.values)
    if form != "expanded" and not _in_graph_or_learning(layer, nope, latent, key):
        heads = forms.Latents(latent, key, layer.k_up, layer.v_up).deferred()
        out = core.by_kernel(*as_autocast(torch.cat((nope, rotary), -1), *heads))
        if out is not None:
            return out
    absorb = form == "absorbed" or (
        form == "auto" and is_absorption_profitable(layer.spec.kv, x.shape[1], kept.keys.shape[2])
    )
    return (forms.absorbed if absorb else forms.expanded)(
        nope, rotary, latent[:, 0], key[:, 0], layer.k_up, layer.v_up, scale=core.terms["scale"],
        visible=core.terms["visible"], offset=core.terms["offset"], form=core,
    )  # fmt: skip


def _in_graph_or_learning(layer: nn.Module, *tensors: Tensor) -> bool:
    """Whether heads must be made by operations of torch: in a graph, or for gradients."""
    learned = (layer.k_up, layer.v_up, *tensors)
    return torch.compiler.is_compiling() or (torch.is_grad_enabled() and any(x.requires_grad for x in learned))


def _normed(layer: nn.Module, x: Tensor, name: str) -> Tensor:
    norm = layer.spec.kv.norm
    if norm is None:
        return x
    return normalise(x, norm, getattr(layer, f"{name}_weight", None), getattr(layer, f"{name}_bias", None))
