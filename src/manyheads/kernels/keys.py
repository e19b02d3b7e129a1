"""Which keys each new query of a decode step sees: the first and last of them, or a bias where that does not say it.

A mask is read once for all layers that are handed the same one, a byte an element. Apart from the kernels, so that it can be
said where Numba is absent.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from manyheads.ops.arguments import check_window
from manyheads.ops.call import AttentionCall
from manyheads.ops.layout import ranked
from manyheads.ops.predicates import Causal, Dense, Everything, Window

__all__ = ["MOST_QUERIES", "Keys", "Seen", "seen_keys"]

MOST_QUERIES = 16
_NOTE = "_manyheads_seen"


@dataclass(frozen=True, eq=False)
class Keys:
    """low[b, t] <= n < high[b, t] for query t of sequence b: int64 tensors (b, t)."""

    low: Tensor
    high: Tensor

    @classmethod
    def causal(cls, batch: int, queries: int, keys: int, *, window: int | None = None) -> Keys:
        """The new queries are the last of `keys` tokens; each sees itself and what came before, at most `window` keys.

        Raises SpecError for a window below 1; None is no window.
        """
        check_window(window)
        return _causal(batch, queries, keys, keys - queries, window)


@dataclass(frozen=True, eq=False)
class Seen:
    """`keys` for each query, and `hidden`, -inf where what lies between is not visible either; None for nothing hidden."""

    keys: Keys
    hidden: Tensor | None = None


def seen_keys(call: AttentionCall) -> Seen:
    """What the mask of a call shows each of its queries."""
    visible, batch, queries, keys = call.visible, call.q.shape[0], call.q.shape[2], call.k.shape[2]
    if isinstance(visible, Everything):
        return Seen(_span(batch, queries, keys))
    if isinstance(visible, Causal | Window):
        window = visible.keys if isinstance(visible, Window) else None
        by_length = _bounds if isinstance(call.offset, Tensor) else _causal
        return Seen(by_length(batch, queries, keys, call.offset, window))
    if not isinstance(visible, Dense):
        return _read(visible.tile(call.all_pairs()), batch, queries, keys)
    mask: Any = visible.mask
    version = None if mask.is_inference() else mask._version
    noted: Any = getattr(mask, _NOTE, None)
    if noted is not None and version is not None and noted[:2] == (version, (batch, queries, keys)):
        found: Seen = noted[2]
        return found
    found = _read(mask, batch, queries, keys)
    if version is not None:
        setattr(mask, _NOTE, (version, (batch, queries, keys), found))
    return found


@lru_cache(maxsize=4)
def _span(batch: int, queries: int, keys: int) -> Keys:
    """All keys for every query; the layers of a model ask for the same, one after the other."""
    return Keys(torch.zeros(batch, queries, dtype=torch.int64), torch.full((batch, queries), keys, dtype=torch.int64))


def _bounds(batch: int, queries: int, keys: int, offset: int | Tensor, window: int | None) -> Keys:
    """What queries that stand at `offset` + i see of keys that stand at n: all up to themselves, at most `window`."""
    start = offset.view(-1, 1) if isinstance(offset, Tensor) else offset
    high = (start + torch.arange(1, queries + 1)).expand(batch, -1)
    low = torch.zeros_like(high) if window is None else (high - window).clamp(0, keys)
    return Keys(low.contiguous(), high.clamp(0, keys).contiguous())


_causal = lru_cache(maxsize=4)(_bounds)  # the layers of a model ask for the same, one after the other


def _hidden(mask: Tensor) -> Tensor:
    return torch.zeros(mask.shape, dtype=torch.float32).masked_fill_(~mask, -torch.inf)


def _read(mask: Tensor, batch: int, queries: int, keys: int) -> Seen:
    """The bounds of every row of a boolean mask (.., t or 1, s or 1) that is the same for all heads."""
    mask = ranked(mask)
    mask = mask.expand(*mask.shape[:3], keys)
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
