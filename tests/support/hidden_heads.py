"""Models whose KV heads are images of fewer: what a conversion must find again, exactly."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from manyheads.checkpoints.pruned import places, prefix_of
from manyheads.convert.key_merge import planes_of
from manyheads.convert.source import open_source
from manyheads.models.load.resize import attention_items
from manyheads.models.store.patterns import put_together

__all__ = ["factors", "hide", "write_attention"]


def factors(positions: Any, head_dim: int, draw: torch.Generator, *, spread: float = 0.5) -> torch.Tensor:
    """A random map that RoPE lets pass: a complex number a plane, any map of what does not turn."""
    shape = planes_of(positions, head_dim)
    planes, flat = len(shape.first), len(shape.flat)
    size = (spread * torch.randn(planes, generator=draw, dtype=torch.float64)).exp()
    turn = torch.polar(size, 6.28 * torch.rand(planes, generator=draw, dtype=torch.float64))
    return shape.matrix(
        turn, torch.eye(flat, dtype=torch.float64) + 0.3 * torch.randn(flat, flat, generator=draw, dtype=torch.float64)
    )


def hide(model: Any, kv_heads: int, *, seed: int = 0) -> tuple[Any, dict[int, list[int]]]:
    """A copy of `model` whose KV heads are shuffled images of `kv_heads` of them, and of which each one is, by layer."""
    source, draw = open_source(model), torch.Generator().manual_seed(seed)
    made, found = {}, {}
    for role, layer, spec in places(source.stack):
        own, begin = source.attention(role, layer), prefix_of(role, layer)
        count = own["k"].shape[0]
        base = (torch.arange(count) % kv_heads)[torch.randperm(count, generator=draw)].tolist()
        found[layer] = base
        keys = [factors(spec.positions, spec.head_dim, draw) for _ in base]
        values = [
            torch.eye(spec.v_head_dim, dtype=torch.float64)
            + 0.3 * torch.randn(spec.v_head_dim, spec.v_head_dim, generator=draw, dtype=torch.float64)
            for _ in base
        ]
        for name, maps in (("k", keys), ("v", values)):
            for each in (name, f"{name}.bias"):
                if each in own:
                    old = own[each].double()
                    made[begin + each] = torch.stack([m @ old[b] for m, b in zip(maps, base, strict=True)])
    changed = copy.deepcopy(model)
    write_attention(changed, source, made)
    return changed, found


@torch.no_grad()
def write_attention(model: Any, source: Any, new: Mapping[str, torch.Tensor]) -> None:
    """Put canonical weights into a model of the same shapes."""
    parameters = dict(model.named_parameters())
    for name, item in attention_items(source.family, source.stack, parameters).items():
        parts = {}
        for part in item.parts:
            old = source.weights[part.name]
            parts[part.name] = new[part.name].to(old.dtype) if part.name in new else old
        parameters[name].copy_(put_together(item, parts).reshape(parameters[name].shape))
