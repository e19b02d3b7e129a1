"""Softmax attention through torch's `scaled_dot_product_attention`, where that computes the same function.

Where it would not (softcap, sinks, a mask too large to write down), the tiled form takes the call, so `attention` is
right either way; `supports` says which and why. torch's causal flag is aligned top-left, ours bottom-right, so the flag
is used only where both coincide (case O12).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from manyheads.ops import tiled
from manyheads.ops.answer import Answer, No, Yes
from manyheads.ops.bias import Additive
from manyheads.ops.predicates import Band, Causal, Chunk, Everything, Visible, Window
from manyheads.ops.request import Request, pairs, request

__all__ = ["LARGEST_MASK_ELEMENTS", "attention", "exported_zeros", "supports"]

LARGEST_MASK_ELEMENTS = 2**24  # 4,096 queries by 4,096 keys: 16 MiB as booleans


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
) -> Tensor:
    """`softmax.attention`, same equation and arguments, by the fastest way torch has (its dropout draws otherwise)."""
    asked = request(
        q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout, offset=offset
    )
    if not _answer(q, k, v, asked):
        return tiled.attention(
            q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout,
            offset=offset,
        )  # type: ignore[return-value]  # fmt: skip
    flag = _flag(q, k, asked)
    mask = None if flag else _mask(q, k, asked)
    out = scaled_dot_product_attention(
        _even(q), _even(k), _even(v), attn_mask=mask, dropout_p=dropout, is_causal=flag, scale=scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )  # fmt: skip
    return out if mask is None else exported_zeros(out, mask, asked, q, k)


def exported_zeros(out: Tensor, mask: Tensor, asked: Request, q: Tensor, k: Tensor) -> Tensor:
    """`out` with zeros in the rows that `mask` leaves without a key, said in so many words where a graph is exported: what
    runs it need not know torch's rule (ONNX before opset 23 has the mean of the values there, or NaN).
    """
    if not (torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()) or _sees_itself(asked, q, k):
        return out
    seen = (mask if mask.dtype == torch.bool else mask > -torch.inf).any(-1, keepdim=True)
    return torch.where(seen, out, 0.0)


def _sees_itself(asked: Request, q: Tensor, k: Tensor) -> bool:
    """Whether no row can be empty: as many keys as queries, under a mask of positions, which shows each its own."""
    whole = isinstance(asked.visible, Causal | Window | Band | Chunk | Everything) and not isinstance(
        asked.bias, Tensor
    )
    return whole and not isinstance(asked.offset, Tensor) and _square(asked.offset, q, k)


def _square(offset: int, q: Tensor, k: Tensor) -> bool:
    # as a branch, so that torch.compile sees a bool where sizes are symbols
    return True if offset == 0 and q.shape[2] == k.shape[2] else False  # noqa: SIM210


def supports(
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
) -> Answer:
    """Whether torch's function computes this call, or No(reason): then `attention` goes to the tiled form."""
    asked = request(
        q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout, offset=offset
    )
    return _answer(q, k, v, asked)


def _answer(q: Tensor, k: Tensor, v: Tensor, asked: Request) -> Answer:
    if asked.softcap is not None:
        return No("torch's SDPA has no softcap")
    if asked.sinks is not None:
        return No("torch's SDPA has no sinks")
    if not q.numel() or not k.numel() or not v.numel():
        return No("there are no tokens")
    if isinstance(asked.bias, Tensor) and not _keeps(asked.bias.dtype, q):
        return No("torch's SDPA would round a {} bias to {}", asked.bias.dtype, q.dtype)
    if isinstance(asked.bias, Additive) and not _keeps(torch.float32, q):
        return No("torch's SDPA would round a bias of positions to {}", q.dtype)
    queries, keys = q.shape[2], k.shape[2]
    # a graph is one for all lengths, and tiles would be a graph for each number of them
    large = not torch.compiler.is_compiling() and queries * keys > LARGEST_MASK_ELEMENTS
    if large and not _flag(q, k, asked) and not _unmasked(q, k, asked):
        text = "the mask would have to be written down: {} x {} = {} elements a head"
        return No(text, queries, keys, queries * keys)
    return Yes()


def _keeps(dtype: torch.dtype, q: Tensor) -> bool:
    """Whether a bias of `dtype` reaches the logits unrounded: as wide as q at most, or float32 on the CPU."""
    narrow = torch.finfo(dtype).bits < torch.finfo(q.dtype).bits
    return dtype == q.dtype or narrow or (dtype == torch.float32 and q.device.type == "cpu")


def _flag(q: Tensor, k: Tensor, asked: Request) -> bool:
    """Whether torch's own causal flag says all there is to say: as many queries as keys, from the start."""
    if asked.bias is not None or not isinstance(asked.visible, Causal) or isinstance(asked.offset, Tensor):
        return False
    return _square(asked.offset, q, k)


def _unmasked(q: Tensor, k: Tensor, asked: Request) -> bool:
    """Whether every query sees every key, which positions alone can tell: one new token under a causal mask."""
    if asked.bias is not None:
        return False
    if isinstance(asked.visible, Everything):
        return True
    if isinstance(asked.offset, Tensor):
        return False
    return asked.visible.block(asked.offset, asked.offset + q.shape[2] - 1, 0, k.shape[2] - 1) is True


def _mask(q: Tensor, k: Tensor, asked: Request) -> Tensor | None:
    """What torch calls attn_mask: None, booleans (True = may attend, as here), or the bias with -inf where not visible."""
    if _unmasked(q, k, asked):
        return None
    shape = (q.shape[2], k.shape[2])
    at = pairs(asked, q, rows=slice(0, shape[0]), columns=slice(0, shape[1]))
    everything = isinstance(asked.visible, Everything)
    seen = asked.visible.tile(at)
    if asked.bias is None:
        return seen.expand(*seen.shape[:2], *shape)
    if isinstance(asked.bias, Tensor):
        keep = torch.finfo(asked.bias.dtype).bits >= torch.finfo(q.dtype).bits
        bias = asked.bias if keep else asked.bias.to(q.dtype)
    else:
        bias = asked.bias.tile(at, q.dtype if q.dtype == torch.float64 else torch.float32)
    if not everything:
        bias = torch.where(seen, bias, -torch.inf)
    bias = bias[(None,) * (4 - bias.dim())]
    return bias.expand(*bias.shape[:2], *shape)


def _even(x: Tensor) -> Tensor:
    """torch's fused kernels have read a strided last axis wrongly (case O62): make it contiguous first."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
