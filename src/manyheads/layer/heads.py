"""Queries, keys and values of heads: projections, their norms, their rotation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from manyheads.ops import norm, rope
from manyheads.ops.precision import wide
from manyheads.spec import AttentionSpec, QKNorm, Rope

__all__ = ["Rotation", "joined", "keys_values", "normed", "projected", "queries", "rotation_at"]


@dataclass(frozen=True, eq=False)
class Rotation:
    """cos and sin of the new tokens' angles, (t, r/2) or (b, t, r/2), and which elements make a pair."""

    cos: Tensor
    sin: Tensor
    layout: str

    def __call__(self, x: Tensor) -> Tensor:
        """x (b, h, t, d), its first r elements rotated."""
        return rope.apply(x, self.cos, self.sin, self.layout)


def rotation_at(spec: AttentionSpec, positions: Tensor, *, length: int | None, dtype: torch.dtype) -> Rotation | None:
    """The rotation of tokens at `positions` (t,), (1, t) or (b, t): angles in float32 or wider, whatever the layer's dtype."""
    if not isinstance(spec.positions, Rope):
        return None
    if positions.dim() == 2 and positions.shape[0] == 1:
        positions = positions[0]
    cos, sin = rope.angles(positions, spec.positions, dtype=wide(dtype), length=length)
    return Rotation(cos, sin, spec.positions.layout)


def projected(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (b, t, m) through a weight (h, d, m): (b, h, t, d)."""
    heads, width, _ = weight.shape
    flat = linear(x, weight.flatten(0, 1), None if bias is None else bias.flatten())
    return flat.view(*x.shape[:2], heads, width).transpose(1, 2)


def joined(heads: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Heads (b, y, t, v) side by side, through a weight (m, y, v): (b, t, m)."""
    return linear(heads.transpose(1, 2).flatten(2), weight.flatten(1), bias)


def queries(layer: nn.Module, x: Tensor, rotation: Rotation | None) -> Tensor:
    """q (b, h, t, q), normed and rotated."""
    spec: AttentionSpec = layer.spec
    q = projected(x, layer.q, getattr(layer, "q_bias", None))
    return _placed(layer, q, spec.qk_norm, "q_norm", rotation)


def keys_values(layer: nn.Module, source: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
    """k (b, k, s, q), normed and rotated, and v (b, k, s, v), from tokens or a memory: what a cache keeps."""
    spec: AttentionSpec = layer.spec
    k = projected(source, layer.k, getattr(layer, "k_bias", None))
    v = projected(source, layer.v, getattr(layer, "v_bias", None))
    return _placed(layer, k, spec.qk_norm, "k_norm", rotation), v


def _placed(layer: nn.Module, x: Tensor, qk_norm: QKNorm | None, name: str, rotation: Rotation | None) -> Tensor:
    before = qk_norm is not None and qk_norm.place == "before_rope"
    if qk_norm is not None and before:
        x = normed(layer, x, qk_norm, name)
    if rotation is not None:
        x = rotation(x)
    return x if qk_norm is None or before else normed(layer, x, qk_norm, name)


def normed(layer: nn.Module, x: Tensor, qk_norm: QKNorm, name: str) -> Tensor:
    """x (b, h, t, q), normed over a head, or over all heads of a token together ("full")."""
    weight, bias = getattr(layer, f"{name}_weight", None), getattr(layer, f"{name}_bias", None)
    if qk_norm.scope == "head":
        return norm.normalise(x, qk_norm.norm, weight, bias)
    by_token = x.transpose(1, 2)
    if qk_norm.scope == "full":
        flat = None if weight is None else weight.flatten()
        shift = None if bias is None else bias.flatten()
        return norm.normalise(by_token.flatten(2), qk_norm.norm, flat, shift).view_as(by_token).transpose(1, 2)
    bare = norm.normalise(by_token.to(wide(x.dtype)), replace(qk_norm.norm, gain="none", shift=False))
    if weight is not None:
        bare = bare * (weight if qk_norm.norm.gain == "w" else 1.0 + weight)
    return (bare if bias is None else bare + bias).to(x.dtype).transpose(1, 2)
