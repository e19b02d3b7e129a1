"""What is computed in which dtype: float32 or wider inside, and what autocast may and may not change."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from manyheads.ops.deferred import DeferredTensor

__all__ = ["as_autocast", "in_full", "wide"]


def wide(dtype: torch.dtype) -> torch.dtype:
    """What softmax, norms and angles are computed in: float64 stays float64, everything else becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_full(x: Tensor) -> AbstractContextManager[object]:
    """No autocast inside: it would take products to 16 bits and leave a backward that no longer fits its forward."""
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In the type of autocast where that is on, to which torch's own attention casts what it is given; else as they are.

    float64 stays float64, as there. What leaves a product is in that type already and what leaves a rotation or a norm is not.
    """
    kind = tensors[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(_as(x, dtype) for x in tensors)


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    if x.dtype == torch.float64:
        return x
    return x.with_dtype(dtype) if isinstance(x, DeferredTensor) else x.to(dtype)
