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
from manyheads.ops.answer import Answer, Yes
from manyheads.ops.bias import Additive
from manyheads.ops.call import AttentionCall
from manyheads.ops.layout import group, ranked, ungroup
from manyheads.ops.precision import in_full, wide
from manyheads.ops.predicates import Visible
from manyheads.spec import check

__all__ = ["attention", "run", "supports"]

_PAIRS_IN_A_TILE = 2**22  # all sequences and heads together: 16 MiB of float32, held about five times
_FEWEST_ROWS = 16
_KEYS_IN_A_TILE = 256


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
    tile: int = _KEYS_IN_A_TILE,
) -> Tensor | tuple[Tensor, Tensor]:
    """`softmax.attention` (same equation, arguments and dropout choices) in memory linear in t + s.

    return_lse  also return ln(sum of exp(logits)) a row, sinks included, (b, h, t) in float32 or wider, -inf where
                nothing is seen: what two halves of a sequence are merged with
    tile        keys in a tile; queries too, or fewer where the batch is large
    """
    call = AttentionCall.checked(
        q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout, offset=offset
    )
    check.size("keys in a tile", tile)
    out, lse = _computed(call, tile)
    return (out, lse) if return_lse else out


def supports(call: AttentionCall) -> Answer:  # noqa: ARG001 - a backend is asked
    """Yes: every call."""
    return Yes()


def run(call: AttentionCall) -> Tensor:
    """The output (b, h, t, v) of a call."""
    return _computed(call, _KEYS_IN_A_TILE)[0]


def _computed(call: AttentionCall, tile: int) -> tuple[Tensor, Tensor]:
    """(out, lse), with gradients."""
    seed = drop.seed(call.q.device) if call.dropout else None
    learned = call.bias if isinstance(call.bias, Tensor) else None
    found: tuple[Tensor, Tensor] = _Tiled.apply(call.q, call.k, call.v, learned, call.sinks, seed, call, tile)
    return found


def _with(
    call: AttentionCall, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, sinks: Tensor | None
) -> AttentionCall:
    """The same call of other tensors."""
    added = call.bias if bias is None else bias
    return AttentionCall(q, k, v, call.scale, call.visible, added, call.softcap, sinks, call.dropout, call.offset)


class _Tiled(torch.autograd.Function):
    """(out, lse). The tensors of the call come beside it, for their gradients, and are kept as autograd keeps them."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        seed: Tensor | None,
        call: AttentionCall,
        tile: int,
    ) -> tuple[Tensor, Tensor]:
        with in_full(q):
            out, lse = _forward(_with(call, q, k, v, bias, sinks), seed, tile)
        ctx.save_for_backward(q, k, v, bias, sinks, seed, out, lse)
        nothing = q.new_empty(0)
        ctx.call, ctx.tile = _with(call, nothing, nothing, nothing, None if bias is None else nothing, None), tile
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, bias, sinks, seed, out, lse = ctx.saved_tensors
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        with in_full(q):
            call = _with(ctx.call, q, k, v, bias, sinks)
            gradients = _backward(call, seed, out, lse, grad_out, grad_lse, ctx.tile)
        return (*gradients, None, None, None)


def _forward(call: AttentionCall, seed: Tensor | None, tile: int) -> tuple[Tensor, Tensor]:
    q, v, (b, h, t, _) = call.q, call.v, call.q.shape
    out = q.new_empty(b, h, t, v.shape[3])
    lse = q.new_empty(b, h, t, dtype=wide(q.dtype))
    for rows in _row_tiles(b * h, t, tile):
        top, total, mixed = _start(call, rows)
        for columns, whole in _column_tiles(call, rows, tile):
            logits, _ = _logits(call, rows, columns, whole=whole)
            new = torch.maximum(top, logits.amax(-1, keepdim=True))
            safe = torch.where(new == -torch.inf, 0.0, new)
            powers, older = torch.exp(logits - safe), torch.exp(top - safe)
            top, total = new, total * older + powers.sum(-1, keepdim=True)
            if seed is not None:
                powers = powers * _factor(seed, call, rows, columns, powers.dtype)
            values = v[:, :, columns].to(powers.dtype)
            mixed = mixed * older + ungroup(group(powers, v.shape[1]) @ values, h)
        out[:, :, rows] = (mixed / torch.where(total == 0, 1.0, total)).to(out.dtype)
        lse[:, :, rows] = (top + torch.log(total)).squeeze(-1)
    return out, lse


def _start(call: AttentionCall, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Maximum, sum and mix of a row before any key: nothing, or the sink alone, whose value is zero."""
    q, compute, shape = call.q, wide(call.q.dtype), (*call.q.shape[:2], rows.stop - rows.start)
    mixed = q.new_zeros(*shape, call.v.shape[3], dtype=compute)
    if call.sinks is None:
        return mixed.new_full((*shape, 1), -torch.inf), mixed.new_zeros(*shape, 1), mixed
    top = call.sinks.to(compute).view(1, -1, 1, 1).expand(*shape, 1)
    return top, mixed.new_ones(*shape, 1), mixed


def _backward(
    call: AttentionCall,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    grad_out: Tensor,
    grad_lse: Tensor | None,
    tile: int,
) -> tuple[Tensor | None, ...]:
    """Gradients of q, k, v, bias and sinks, from p = exp(logits - lse):

    dv = p^T dy,  dp = dy v^T,  dlogits = p · (dp - D),  D = sum(dy · y) - dlse a row
    """
    q, k, v, sinks, bias = call.q, call.k, call.v, call.sinks, call.bias if isinstance(call.bias, Tensor) else None
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
        for columns, whole in _column_tiles(call, rows, tile):
            logits, slope = _logits(call, rows, columns, whole=whole)
            factor = 1.0 if seed is None else _factor(seed, call, rows, columns, compute)
            p, dp = torch.exp(logits - spread), ungroup(dy @ v[:, :, columns].to(compute).mT, heads) * factor
            dv[:, :, columns] += group(p * factor, kv_heads).mT @ dy
            ds = p * (dp - means)
            if dbias is not None:
                part = _part(dbias, rows, columns)
                part += ds.sum_to_size(part.shape)
            ds = group(call.scale * (ds if slope is None else ds * slope), kv_heads)
            dq[:, :, rows] += ungroup(ds @ k[:, :, columns].to(compute), heads)
            dk[:, :, columns] += ds.mT @ queries
    dbias = None if dbias is None or bias is None else dbias.to(bias.dtype).view(bias.shape)
    dsinks = None if dsinks is None or sinks is None else dsinks.to(sinks.dtype)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dbias, dsinks


def _logits(call: AttentionCall, rows: slice, columns: slice, *, whole: bool) -> tuple[Tensor, Tensor | None]:
    """The logits of one tile, -inf where not visible, and the softcap's slope there (None without one)."""
    q, k, compute = call.q, call.k, wide(call.q.dtype)
    queries = group(q[:, :, rows].to(compute) * call.scale, k.shape[1])
    logits = ungroup(queries @ k[:, :, columns].to(compute).mT, q.shape[1])
    slope = None
    if call.softcap is not None:
        bent = torch.tanh(logits / call.softcap)
        logits, slope = bent * call.softcap, 1 - bent * bent
    if call.bias is None and whole:
        return logits, slope
    at = call.pairs(rows, columns)
    if isinstance(call.bias, Tensor):
        logits = logits + _part(ranked(call.bias), rows, columns).to(compute)
    elif call.bias is not None:
        logits = logits + call.bias.tile(at, compute)
    return logits if whole else torch.where(call.visible.tile(at), logits, -torch.inf), slope


def _part(whole: Tensor, rows: slice, columns: slice) -> Tensor:
    """A view of the tile of a tensor whose axes may be 1, but for the last."""
    return whole[:, :, rows if whole.shape[2] != 1 else slice(None), columns]


def _factor(seed: Tensor, call: AttentionCall, rows: slice, columns: slice, dtype: torch.dtype) -> Tensor:
    at = call.pairs(rows, columns)
    return drop.factor(seed, at, share=call.dropout, dtype=dtype)


def _row_tiles(wide_by: int, rows: int, tile: int) -> Iterator[slice]:
    size = max(_FEWEST_ROWS, min(tile, _PAIRS_IN_A_TILE // (max(wide_by, 1) * tile)))
    return _tiles(rows, size)


def _tiles(length: int, size: int) -> Iterator[slice]:
    """Counted, not stepped: torch.compile then makes one graph for all lengths of as many tiles, not one a length."""
    return (slice(n * size, min(n * size + size, length)) for n in range((length + size - 1) // size))


def _column_tiles(call: AttentionCall, rows: slice, tile: int) -> Iterator[tuple[slice, bool]]:
    """The key tiles that some query of `rows` sees, and whether all of them see all of it."""
    for columns in _tiles(call.k.shape[2], tile):
        seen: bool | None = None
        if not isinstance(call.offset, Tensor):
            first = call.offset + rows.start
            seen = call.visible.block(first, first + rows.stop - rows.start - 1, columns.start, columns.stop - 1)
        if seen is not False:
            yield columns, seen is True
