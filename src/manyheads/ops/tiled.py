"""Softmax attention over tiles with a running maximum and sum: the same function, and never a T x T matrix.

For each tile of queries the key tiles pass by once; what was summed under an older maximum is rescaled. The backward
makes the probabilities again from the log-sum-exp of each row. Tiles that a mask of positions shows to nobody are
skipped, so a window costs T·W. Memory beyond the result: two numbers a row and one tile. This is the idea of
FlashAttention (arXiv 2205.14135, algorithms 1 and 4; tiles over queries as in 2307.08691), as readable code.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from manyheads.ops import dropout as drop
from manyheads.ops.bias import Additive
from manyheads.ops.predicates import Visible
from manyheads.ops.request import Request, group, in_full, pairs, ranked, request, ungroup, wide
from manyheads.spec import check

__all__ = ["attention"]

_PAIRS_IN_A_TILE = 2**22  # all sequences and heads together: 16 MiB of float32, held about five times
_FEWEST_ROWS = 16


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    visible: Visible | Tensor | None = None,
    bias: Tensor | Additive | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    dropout: float = 0.0,
    offset: int | Tensor | None = None,
    return_lse: bool = False,
    tile: int = 256,
) -> Tensor | tuple[Tensor, Tensor]:
    """`softmax.attention` (same equation, arguments and dropout choices) in memory linear in t + s.

    return_lse  also return ln(sum of exp(logits)) a row, sinks included, (b, h, t) in float32 or wider, -inf where
                nothing is seen: what two halves of a sequence are merged with
    tile        keys in a tile; queries too, or fewer where the batch is large
    """
    asked = request(
        q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout, offset=offset
    )
    check.size("keys in a tile", tile)
    seed = drop.seed(q.device) if dropout else None
    learned = bias if isinstance(bias, Tensor) else None
    out, lse = _Tiled.apply(q, k, v, learned, sinks, seed, asked, tile)
    return (out, lse) if return_lse else out


class _Tiled(torch.autograd.Function):
    """(out, lse); `asked` holds bias and sinks a second time, the arguments are there for their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        seed: Tensor | None,
        asked: Request,
        tile: int,
    ) -> tuple[Tensor, Tensor]:
        with in_full(q):
            out, lse = _forward(q, k, v, seed, asked, tile)
        ctx.save_for_backward(q, k, v, bias, sinks, seed, out, lse)
        ctx.asked, ctx.tile = asked, tile
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, bias, sinks, seed, out, lse = ctx.saved_tensors
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        with in_full(q):
            gradients = _backward(q, k, v, bias, sinks, seed, out, lse, grad_out, grad_lse, ctx.asked, ctx.tile)
        return (*gradients, None, None, None)


def _forward(q: Tensor, k: Tensor, v: Tensor, seed: Tensor | None, asked: Request, tile: int) -> tuple[Tensor, Tensor]:
    b, h, t, _ = q.shape
    out = q.new_empty(b, h, t, v.shape[3])
    lse = q.new_empty(b, h, t, dtype=wide(q.dtype))
    for rows in _row_tiles(b * h, t, tile):
        top, total, mixed = _start(q, v, rows, asked)
        for columns, whole in _column_tiles(asked, rows, k.shape[2], tile):
            logits, _ = _logits(q, k, asked, rows, columns, whole=whole)
            new = torch.maximum(top, logits.amax(-1, keepdim=True))
            safe = torch.where(new == -torch.inf, 0.0, new)
            powers, older = torch.exp(logits - safe), torch.exp(top - safe)
            top, total = new, total * older + powers.sum(-1, keepdim=True)
            if seed is not None:
                powers = powers * _factor(seed, q, asked, rows, columns, powers.dtype)
            values = v[:, :, columns].to(powers.dtype)
            mixed = mixed * older + ungroup(group(powers, v.shape[1]) @ values, h)
        out[:, :, rows] = (mixed / torch.where(total == 0, 1.0, total)).to(out.dtype)
        lse[:, :, rows] = (top + torch.log(total)).squeeze(-1)
    return out, lse


def _start(q: Tensor, v: Tensor, rows: slice, asked: Request) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum, sum and mix of a row before any key: nothing, or the sink alone, whose value is zero."""
    compute, shape = wide(q.dtype), (*q.shape[:2], rows.stop - rows.start)
    mixed = q.new_zeros(*shape, v.shape[3], dtype=compute)
    if asked.sinks is None:
        return mixed.new_full((*shape, 1), -torch.inf), mixed.new_zeros(*shape, 1), mixed
    top = asked.sinks.to(compute).view(1, -1, 1, 1).expand(*shape, 1)
    return top, mixed.new_ones(*shape, 1), mixed


def _backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    asked: Request,
    tile: int,
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, bias and sinks, from p = exp(logits - lse):

    dv = p^T dy,  dp = dy v^T,  dlogits = p · (dp - D),  D = sum(dy · y) - dlse a row
    """
    compute, kv_heads, heads = lse.dtype, k.shape[1], q.shape[1]
    dq, dk, dv = (torch.zeros_like(x, dtype=compute) for x in (q, k, v))
    dbias = None if bias is None else torch.zeros_like(ranked(bias), dtype=compute)
    dsinks = None if sinks is None else torch.zeros_like(sinks, dtype=compute)
    for rows in _row_tiles(q.shape[0] * heads, q.shape[2], tile):
        dy, spread = grad_out[:, :, rows].to(compute), lse[:, :, rows, None]
        spread = torch.where(spread == -torch.inf, torch.inf, spread)  # p = 0 in a row that sees nothing
        means = (dy * out[:, :, rows].to(compute)).sum(-1, keepdim=True)
        means = means if grad_lse is None else means - grad_lse[:, :, rows, None]
        if sinks is not None and dsinks is not None:
            shares = torch.exp(sinks.to(compute).view(1, -1, 1, 1) - spread)
            dsinks = dsinks - (shares * means).sum((0, 2, 3))
        queries, dy = group(q[:, :, rows].to(compute), kv_heads), group(dy, kv_heads)
        for columns, whole in _column_tiles(asked, rows, k.shape[2], tile):
            logits, slope = _logits(q, k, asked, rows, columns, whole=whole)
            factor = 1.0 if seed is None else _factor(seed, q, asked, rows, columns, compute)
            p, dp = torch.exp(logits - spread), ungroup(dy @ v[:, :, columns].to(compute).mT, heads) * factor
            dv[:, :, columns] += group(p * factor, kv_heads).mT @ dy
            ds = p * (dp - means)
            if dbias is not None:
                part = _part(dbias, rows, columns)
                part += ds.sum_to_size(part.shape)
            ds = group(asked.scale * (ds if slope is None else ds * slope), kv_heads)
            dq[:, :, rows] += ungroup(ds @ k[:, :, columns].to(compute), heads)
            dk[:, :, columns] += ds.mT @ queries
    dbias = None if dbias is None or bias is None else dbias.to(bias.dtype).view(bias.shape)
    dsinks = None if dsinks is None or sinks is None else dsinks.to(sinks.dtype)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dbias, dsinks


def _logits(
    q: Tensor, k: Tensor, asked: Request, rows: slice, columns: slice, *, whole: bool
) -> tuple[Tensor, Tensor | None]:
    """The logits of one tile, -inf where not visible, and the softcap's slope there (None without one)."""
    compute = wide(q.dtype)
    queries = group(q[:, :, rows].to(compute) * asked.scale, k.shape[1])
    logits = ungroup(queries @ k[:, :, columns].to(compute).mT, q.shape[1])
    slope = None
    if asked.softcap is not None:
        bent = torch.tanh(logits / asked.softcap)
        logits, slope = bent * asked.softcap, 1 - bent * bent
    if asked.bias is None and whole:
        return logits, slope
    at = pairs(asked, q, rows=rows, columns=columns)
    if isinstance(asked.bias, Tensor):
        logits = logits + _part(ranked(asked.bias), rows, columns).to(compute)
    elif asked.bias is not None:
        logits = logits + asked.bias.tile(at, compute)
    return logits if whole else torch.where(asked.visible.tile(at), logits, -torch.inf), slope


def _part(whole: Tensor, rows: slice, columns: slice) -> Tensor:
    """A view of the tile of a tensor whose axes may be 1, but for the last."""
    return whole[:, :, rows if whole.shape[2] != 1 else slice(None), columns]


def _factor(seed: Tensor, q: Tensor, asked: Request, rows: slice, columns: slice, dtype: torch.dtype) -> Tensor:
    at = pairs(asked, q, rows=rows, columns=columns)
    return drop.factor(seed, at, share=asked.dropout, dtype=dtype)


def _row_tiles(wide_by: int, rows: int, tile: int) -> Iterator[slice]:
    size = max(_FEWEST_ROWS, min(tile, _PAIRS_IN_A_TILE // (max(wide_by, 1) * tile)))
    return _tiles(rows, size)


def _tiles(length: int, size: int) -> Iterator[slice]:
    """Counted, not stepped: torch.compile then makes one graph for all lengths of as many tiles, not one a length."""
    return (slice(n * size, min(n * size + size, length)) for n in range((length + size - 1) // size))


def _column_tiles(asked: Request, rows: slice, keys: int, tile: int) -> Iterator[tuple[slice, bool]]:
    """The key tiles that some query of `rows` sees, and whether all of them see all of it."""
    for columns in _tiles(keys, tile):
        seen: bool | None = None
        if not isinstance(asked.offset, Tensor):
            first = asked.offset + rows.start
            seen = asked.visible.block(first, first + rows.stop - rows.start - 1, columns.start, columns.stop - 1)
        if seen is not False:
            yield columns, seen is True
