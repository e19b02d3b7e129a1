"""What a layer keeps between calls, behind one protocol (`Cache`): growing, static, rolling, int8, latent, state.

Keys and values lie in `storage`, in the cache layers of transformers' models too (`models.caches`).
"""

from __future__ import annotations

import torch

from manyheads.errors import SpecError
from manyheads.layer.caches.base import Cache, Kept
from manyheads.layer.caches.growing import GrowingCache, QuantisedCache
from manyheads.layer.caches.state import StateCache
from manyheads.layer.caches.static import StaticCache
from manyheads.layer.caches.window import WindowCache
from manyheads.quoting import shown
from manyheads.spec import AttentionSpec, Borrowed, State, to_text

__all__ = [
    "KINDS",
    "Cache",
    "GrowingCache",
    "Kept",
    "QuantisedCache",
    "StateCache",
    "StaticCache",
    "WindowCache",
    "cache_for",
]

KINDS = ("growing", "static", "rolling", "int8")


def cache_for(
    spec: AttentionSpec,
    *,
    batch: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    capacity: int | None = None,
    kind: str = "growing",
) -> Cache:
    """The cache that fits `spec`.

    kind      "growing": every token; "static": room for `capacity` tokens taken at once; "rolling": the last W of a
              window or chunk; "int8": growing, in eight bits, keys Hadamard-rotated. Linear attention keeps its state in all but the last two.
    dtype     what keys and values are kept in, the layer's own; of a state, what the state is kept in

    Raises SpecError for layers that keep nothing: two-sided masks, and layers that borrow.
    """
    if kind not in KINDS:
        raise SpecError(f"cache kind must be one of {', '.join(KINDS)}; found {shown(kind)}")
    if (capacity is not None) != (kind == "static"):
        found = "none" if capacity is None else str(capacity)
        raise SpecError(f"capacity is for static caches and only they need one; found {found} for a {kind} cache")
    if isinstance(spec.source, Borrowed):
        raise SpecError(f"{to_text(spec)} reads what layer {spec.source.layer} keeps: it has no cache of its own")
    if isinstance(spec.kv, State):
        if kind in ("rolling", "int8"):
            raise SpecError(f"{to_text(spec)} keeps a state: there is no {kind} form of it")
        return StateCache(spec, batch=batch, dtype=dtype, device=device)
    if kind == "static":
        assert capacity is not None
        return StaticCache(spec, batch=batch, capacity=capacity, dtype=dtype, device=device)
    made = {"growing": GrowingCache, "rolling": WindowCache, "int8": QuantisedCache}[kind]
    return made(spec, batch=batch, dtype=dtype, device=device)
