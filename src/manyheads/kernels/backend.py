"""The decode kernels as a backend: what they take of a call of attention, and how they compute it.

They read keys and values as a cache keeps them (`ops.deferred.StoredTensor`), and the latents of MLA without making heads of them
(`ops.latent.Latents`): for one to sixteen new queries a sequence, without gradients.
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from manyheads.cost.dtypes import MODEL_DTYPES
from manyheads.kernels.keys import MOST_QUERIES, seen_keys
from manyheads.ops.answer import Answer, No
from manyheads.ops.bias import Additive, Alibi
from manyheads.ops.call import AttentionCall
from manyheads.ops.deferred import StoredTensor
from manyheads.ops.dtypes import torch_dtype
from manyheads.ops.hadamard import hadamard_rotate
from manyheads.ops.latent import Latents, latents_of

__all__ = ["run", "supports"]

_NUMBA = importlib.util.find_spec("numba") is not None
# Rows for which reading a head's matrix is the work; for more of them torch's product is quicker.
_MOST_ROWS = 64
_PROJECTED = tuple(map(torch_dtype, MODEL_DTYPES))


def supports(call: AttentionCall) -> Answer:
    """Whether the kernels compute this call, or No(reason)."""
    if not _NUMBA:
        return No("numba is not installed; pip install 'manyheads[models]' brings it")
    if torch.compiler.is_compiling():
        if torch.compiler.is_exporting():
            return No("an exported graph runs where these kernels are not")
        if call.q.shape[2] != 1:
            return No("a graph is for any number of new queries, and its operator for one")
    if call.q.shape[2] > MOST_QUERIES:  # said here too, so that who only reads prompts never waits for Numba
        return No("the kernels take 1 to {} new queries, found {}", MOST_QUERIES, call.q.shape[2])
    if call.dropout:
        return No("the kernels have no dropout, {} was asked for", call.dropout)
    learned = (x for x in (call.bias, call.sinks) if isinstance(x, Tensor))
    if torch.is_grad_enabled() and any(x.requires_grad for x in learned):
        return No("the kernels have no backward pass")
    from manyheads.kernels import attend

    latents = latents_of(call.k, call.v)
    if latents is not None:
        return attend.supports(*latents.absorbed_shapes(call.q))
    return attend.supports(call.q, _stored(call.k), _stored(call.v))


def run(call: AttentionCall) -> Tensor:
    """The output (b, h, t, v) of a call that is supported, in the dtype of q."""
    latents = latents_of(call.k, call.v)
    if latents is None:
        return _decoded(call, call.q, call.k, call.v).to(call.q.dtype)
    rows = latents.rows
    mixed = _decoded(call, _absorbed_queries(latents, call.q), rows, rows[..., : latents.rank])
    return _values(latents, mixed).to(call.q.dtype)


def _decoded(call: AttentionCall, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The call with these queries, keys and values in the place of its own."""
    seen, bias, slopes, positions = seen_keys(call), call.bias, None, None
    if isinstance(bias, Alibi):
        slopes, bias = bias.slopes, None
        start = call.offset.view(-1, 1) if isinstance(call.offset, Tensor) else call.offset
        positions = start + torch.arange(q.shape[2])
    elif isinstance(bias, Additive):
        bias = bias.tile(call.all_pairs(), torch.float32)
    if seen.hidden is not None:
        bias = seen.hidden if bias is None else bias + seen.hidden
    if isinstance(k, StoredTensor) and k.is_rotated:
        q = hadamard_rotate(q)
    from manyheads.kernels.attend import Beside, compute

    beside = Beside(bias, slopes, positions, call.sinks, _scales(k), _scales(v))
    return compute(q, _stored(k), _stored(v), seen.keys, beside, scale=call.scale, softcap=call.softcap)


def _absorbed_queries(latents: Latents, q: Tensor) -> Tensor:
    """W_k_up,h^T q_h beside the rotary part: queries over the rows, (b, h, t, c + r)."""
    nope, (b, h, t, _) = latents.k_up.shape[1], q.shape
    by_head = q[..., :nope].transpose(0, 1).reshape(h, b * t, nope)
    over_latents = _times(by_head, latents.k_up, transposed=False).view(h, b, t, -1).transpose(0, 1)
    return torch.cat((over_latents, q[..., nope:].to(over_latents.dtype)), 3)


def _values(latents: Latents, mixed: Tensor) -> Tensor:
    """y_h = W_v_up,h times the attention output over latents: (b, h, t, c) to (b, h, t, v)."""
    b, h, t, rank = mixed.shape
    made = _times(mixed.transpose(0, 1).reshape(h, b * t, rank), latents.v_up, transposed=True)
    return made.reshape(h, b, t, -1).transpose(0, 1)


def _times(x: Tensor, w: Tensor, *, transposed: bool) -> Tensor:
    """x (h, r, n) times w, or its transpose, head by head: in float32 by the kernels where they can, else in the dtype of w."""
    if x.shape[1] > _MOST_ROWS or w.dtype not in _PROJECTED:
        x = x.to(w.dtype)
        return torch.bmm(x, w.mT if transposed else w)
    from manyheads.kernels import project

    return (project.times_transposed if transposed else project.times)(x, w)


def _stored(x: Tensor) -> Tensor:
    """The numbers as they lie in memory."""
    return x.numbers if isinstance(x, StoredTensor) else x


def _scales(x: Tensor) -> Tensor | None:
    return x.scales if isinstance(x, StoredTensor) else None
