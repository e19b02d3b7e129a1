"""From a mask to what the decode kernel reads: the first and last key of each query, or a bias where that does not say it.

A mask is read once for all layers that are handed the same one, a byte an element; a mask that the door has marked as
showing everything is not read at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from manyheads.kernels.keys import Keys
from manyheads.ops.masks import materialise
from manyheads.ops.predicates import Causal, Dense, Everything, Visible, Window

__all__ = ["Seen", "seen_keys"]

_NOTE = "_manyheads_seen"


@dataclass(frozen=True, eq=False)
class Seen:
    """`keys` for each query, and `hidden`, -inf where what lies between is not visible either; None for nothing hidden."""

    keys: Keys
    hidden: Tensor | None = None


def seen_keys(visible: Visible | Tensor | None, *, batch: int, heads: int, queries: int, keys: int) -> Seen:
    """What `visible` shows the last `queries` of `keys` tokens."""
    if visible is None or isinstance(visible, Everything):
        return Seen(_span(batch, queries, keys))
    if isinstance(visible, Causal | Window):
        return Seen(Keys.causal(batch, queries, keys, window=visible.keys if isinstance(visible, Window) else None))
    mask: Any = visible
    if isinstance(visible, Tensor):
        Dense(visible).check(batch=batch, heads=heads, queries=queries, keys=keys)
    else:
        mask = materialise(visible, batch=batch, heads=heads, queries=queries, keys=keys)
    version = None if mask.is_inference() else mask._version
    noted: Any = getattr(mask, _NOTE, None)
    if noted is not None and version is not None and noted[:2] == (version, (batch, queries, keys)):
        return noted[2]
    found = _read(mask, batch, queries, keys)
    if version is not None:
        setattr(mask, _NOTE, (version, (batch, queries, keys), found))
    return found


@lru_cache(maxsize=4)
def _span(batch: int, queries: int, keys: int) -> Keys:
    """All keys for every query; the layers of a model ask for the same, one after the other."""
    return Keys(torch.zeros(batch, queries, dtype=torch.int64), torch.full((batch, queries), keys, dtype=torch.int64))


def _hidden(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(~mask, -torch.inf)


def _read(mask: Tensor, batch: int, queries: int, keys: int) -> Seen:
    """The bounds of every row of a boolean mask (.., t, s) that is the same for all heads."""
    mask = mask[(None,) * (4 - mask.dim())]
    if mask.shape[1] > 1 and mask.stride(1) == 0:
        mask = mask[:, :1]
    if mask.shape[1] > 1:
        return Seen(_span(batch, queries, keys), _hidden(mask))
    rows = mask[:1, 0] if mask.shape[0] > 1 and mask.stride(0) == 0 else mask[:, 0]
    table = rows.numpy()  # bool: its argmax stops at the first True
    low = torch.from_numpy(table.argmax(-1))
    high = keys - torch.from_numpy(table[..., ::-1].argmax(-1))
    count = rows.sum(-1)
    low, high = torch.where(count > 0, low, 0), torch.where(count > 0, high, 0)
    found = Keys(low.expand(batch, queries).contiguous(), high.expand(batch, queries).contiguous())
    gaps = bool((high - low != count).any())
    return Seen(found, _hidden(mask) if gaps else None)
