"""Softmax attention through torch's `scaled_dot_product_attention`, where that computes the same function.

Where it would not (softcap, sinks, a mask too large to write down), `attention` goes to the tiled form; `supports` says
where and why. torch's causal flag is aligned top-left, ours bottom-right, so the flag
is used only where both coincide (case O12).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from manyheads.ops import tiled
from manyheads.ops.answer import Answer, No, Yes
from manyheads.ops.bias import Additive
from manyheads.ops.call import AttentionCall
from manyheads.ops.predicates import Band, Causal, Chunk, Everything, Visible, Window

__all__ = ["LARGEST_DROPPED_ELEMENTS", "LARGEST_MASK_ELEMENTS", "attention", "exported_zeros", "run", "supports"]

LARGEST_MASK_ELEMENTS = 2**24  # 4,096 queries by 4,096 keys: 16 MiB as booleans
LARGEST_DROPPED_ELEMENTS = 2**24  # all sequences and heads: where torch drops weights it writes them all down


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
    call = AttentionCall.checked(
        q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout, offset=offset
    )
    return run(call) if supports(call) else tiled.run(call)


def run(call: AttentionCall) -> Tensor:
    """The output (b, h, t, v) of a call that is supported."""
    flag = _flag(call)
    mask = None if flag else _mask(call)
    out = scaled_dot_product_attention(
        _even(call.q), _even(call.k), _even(call.v), attn_mask=mask, dropout_p=call.dropout, is_causal=flag,
        scale=call.scale, enable_gqa=call.q.shape[1] != call.k.shape[1],
    )  # fmt: skip
    return out if mask is None else exported_zeros(out, mask, call)


def exported_zeros(out: Tensor, mask: Tensor, call: AttentionCall) -> Tensor:
    """`out` with zeros in the rows that `mask` leaves without a key, said in so many words where a graph is exported: what
    runs it need not know torch's rule (ONNX before opset 23 has the mean of the values there, or NaN).
    """
    if not (torch.compiler.is_exporting() or torch.onnx.is_in_onnx_export()) or _sees_itself(call):
        return out
    seen = (mask if mask.dtype == torch.bool else mask > -torch.inf).any(-1, keepdim=True)
    return torch.where(seen, out, 0.0)


def _sees_itself(call: AttentionCall) -> bool:
    """Whether no row can be empty: as many keys as queries, under a mask of positions, which shows each its own."""
    whole = isinstance(call.visible, Causal | Window | Band | Chunk | Everything) and not isinstance(call.bias, Tensor)
    return whole and call.is_square


def supports(call: AttentionCall) -> Answer:
    """Whether torch's function computes this call, or No(reason)."""
    q, k, v = call.q, call.k, call.v
    if call.softcap is not None:
        return No("torch's SDPA has no softcap")
    if call.sinks is not None:
        return No("torch's SDPA has no sinks")
    if not q.numel() or not k.numel() or not v.numel():
        return No("there are no tokens")
    if isinstance(call.bias, Tensor) and not _keeps(call.bias.dtype, q):
        return No("torch's SDPA would round a {} bias to {}", call.bias.dtype, q.dtype)
    if isinstance(call.bias, Additive) and not _keeps(torch.float32, q):
        return No("torch's SDPA would round a bias of positions to {}", q.dtype)
    (b, h, queries, _), keys = q.shape, k.shape[2]
    if call.dropout and not torch.compiler.is_compiling() and b * h * queries * keys > LARGEST_DROPPED_ELEMENTS:
        return No("torch's SDPA would write down {} weights to drop some of them", b * h * queries * keys)
    # a graph is one for all lengths, and tiles would be a graph for each number of them
    large = not torch.compiler.is_compiling() and queries * keys > LARGEST_MASK_ELEMENTS
    if large and not _flag(call) and not _unmasked(call):
        text = "the mask would have to be written down: {} x {} = {} elements a head"
        return No(text, queries, keys, queries * keys)
    return Yes()


def _keeps(dtype: torch.dtype, q: Tensor) -> bool:
    """Whether a bias of `dtype` reaches the logits unrounded: as wide as q at most, or float32 on the CPU."""
    narrow = torch.finfo(dtype).bits < torch.finfo(q.dtype).bits
    return dtype == q.dtype or narrow or (dtype == torch.float32 and q.device.type == "cpu")


def _flag(call: AttentionCall) -> bool:
    """Whether torch's own causal flag says all there is to say: as many queries as keys, from the start."""
    return call.bias is None and isinstance(call.visible, Causal) and call.is_square


def _unmasked(call: AttentionCall) -> bool:
    """Whether every query sees every key, which positions alone can tell: one new token under a causal mask."""
    if call.bias is not None:
        return False
    if isinstance(call.visible, Everything):
        return True
    if isinstance(call.offset, Tensor):
        return False
    return call.visible.block(call.offset, call.offset + call.q.shape[2] - 1, 0, call.k.shape[2] - 1) is True


def _mask(call: AttentionCall) -> Tensor | None:
    """What torch calls attn_mask: None, booleans (True = may attend, as here), or the bias with -inf where not visible."""
    if _unmasked(call):
        return None
    q = call.q
    shape, at = (q.shape[2], call.k.shape[2]), call.all_pairs()
    everything = isinstance(call.visible, Everything)
    seen = call.visible.tile(at)
    if call.bias is None:
        return seen.expand(*seen.shape[:2], *shape)
    if isinstance(call.bias, Tensor):
        keep = torch.finfo(call.bias.dtype).bits >= torch.finfo(q.dtype).bits
        bias = call.bias if keep else call.bias.to(q.dtype)
    else:
        bias = call.bias.tile(at, q.dtype if q.dtype == torch.float64 else torch.float32)
    if not everything:
        bias = torch.where(seen, bias, -torch.inf)
    bias = bias[(None,) * (4 - bias.dim())]
    return bias.expand(*bias.shape[:2], *shape)


def _even(x: Tensor) -> Tensor:
    """torch's fused kernels have read a strided last axis wrongly (case O62): make it contiguous first."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()
