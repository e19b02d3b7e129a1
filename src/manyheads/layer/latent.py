"""Latent attention: what is kept, the queries, and the choice between expanding and absorbing."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from manyheads.cost.formulas import absorption_crossover_queries
from manyheads.layer.caches.base import Kept
from manyheads.layer.core import Core
from manyheads.layer.heads import Turn, projected
from manyheads.layer.placing import Place
from manyheads.ops import latent as forms
from manyheads.ops.norm import normalise
from manyheads.ops.predicates import Visible
from manyheads.spec import AttentionSpec, Latent

__all__ = ["FORMS", "absorbs", "attend", "kept_parts", "queries"]

FORMS = ("auto", "expanded", "absorbed")


def queries(layer: nn.Module, x: Tensor, turned: Turn | None) -> tuple[Tensor, Tensor]:
    """The parts of the queries without position (b, h, t, d) and with (b, h, t, r), turned."""
    kv: Latent = layer.spec.kv
    if kv.q_rank:
        x = _normed(layer, linear(x, layer.q_down, getattr(layer, "q_down_bias", None)), "q_down_norm")
        q = projected(x, layer.q_up)
    else:
        q = projected(x, layer.q, getattr(layer, "q_bias", None))
    nope, rotary = q.split((kv.nope_dim, kv.rope_dim), -1)
    return nope, rotary if turned is None else turned(rotary)


def kept_parts(layer: nn.Module, source: Tensor, turned: Turn | None) -> tuple[Tensor, Tensor]:
    """What a cache keeps: the latent after its norm (b, 1, s, c) and the rotary key after its turn (b, 1, s, r)."""
    latent = _normed(layer, linear(source, layer.kv_down, getattr(layer, "kv_down_bias", None)), "kv_down_norm")[
        :, None
    ]
    if not layer.spec.kv.rope_dim:
        return latent, latent[..., :0]
    key = linear(source, layer.k_rope, getattr(layer, "k_rope_bias", None))[:, None]
    return latent, key if turned is None else turned(key)


def attend(
    layer: nn.Module,
    x: Tensor,
    kept: Kept,
    core: Core,
    *,
    turned: Turn | None,
    visible: Visible,
    place: Place,
    form: str,
) -> Tensor:
    """Heads (b, h, t, v), expanded or absorbed."""
    nope, rotary = queries(layer, x, turned)
    absorb = absorbs(layer.spec, x.shape[1], kept.keys.shape[2]) if form == "auto" else form == "absorbed"
    return (forms.absorbed if absorb else forms.expanded)(
        nope, rotary, kept.keys[:, 0], kept.values[:, 0], layer.k_up, layer.v_up,
        scale=layer.spec.scale, visible=visible, offset=place.offset, form=core,
    )  # fmt: skip


def absorbs(spec: AttentionSpec, count: int, keys: int) -> bool:
    """Whether scoring the latents themselves takes fewer MACs than expanding `keys` of them, for `count` queries.

    t · s · H(2c - n - v) < (s - t) · c · H(n + v): for a long cache, fewer queries than the crossover [facts: F41].
    """
    kv = spec.kv
    assert isinstance(kv, Latent)
    if 2 * kv.rank <= kv.nope_dim + kv.v_head_dim:
        return True
    crossover = absorption_crossover_queries(kv.nope_dim, kv.v_head_dim, kv.rank)
    return bool(count * keys < crossover * (keys - count))


def _normed(layer: nn.Module, x: Tensor, name: str) -> Tensor:
    norm = layer.spec.kv.norm
    if norm is None:
        return x
    return normalise(x, norm, getattr(layer, f"{name}_weight", None), getattr(layer, f"{name}_bias", None))
