"""The scores that came before: Bahdanau's additive, Luong's dot, general and concat, Cheng's intra-attention.

One head, tokens as (batch, tokens, width), no scale. Every function returns (context, weights): the values mixed by the
weights, and the weights (batch, queries, keys), computed in float32 or wider and cast back. Values are the keys
themselves unless given. `visible` (.., t, s) is boolean, True = may attend; a query that sees nothing gets zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.arguments import check_shape
from manyheads.ops.precision import in_full, wide
from manyheads.ops.softmax import probabilities

__all__ = ["additive", "concat", "dot", "general", "intra"]


def additive(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    w_q: Tensor,
    w_k: Tensor,
    w_score: Tensor,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """score(i, j) = w_score · tanh(W_q q_i + W_k k_j): one hidden layer of width a (arXiv 1409.0473, appendix A.1.2).

    q (b, t, m), k (b, s, e), w_q (a, m), w_k (a, e), w_score (a,).
    """
    _fits("w_q", w_q, (w_score.shape[0], q.shape[-1]))
    _fits("w_k", w_k, (w_score.shape[0], k.shape[-1]))
    wider = wide(q.dtype)
    with in_full(q):
        left, right = q.to(wider) @ w_q.to(wider).T, k.to(wider) @ w_k.to(wider).T
        return _mix(torch.tanh(left[:, :, None] + right[:, None]) @ w_score.to(wider), k, v, visible)


def dot(q: Tensor, k: Tensor, v: Tensor | None = None, *, visible: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """score(i, j) = q_i · k_j, widths equal (arXiv 1508.04025, section 3.1)."""
    if q.shape[-1] != k.shape[-1]:
        raise SpecError(f"dot needs queries and keys of one width, found {q.shape[-1]} and {k.shape[-1]}")
    wider = wide(q.dtype)
    with in_full(q):
        return _mix(q.to(wider) @ k.to(wider).mT, k, v, visible)


def general(
    q: Tensor, k: Tensor, v: Tensor | None = None, *, w: Tensor, visible: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """score(i, j) = q_i^T W k_j with w (m, e) (arXiv 1508.04025, section 3.1)."""
    _fits("w", w, (q.shape[-1], k.shape[-1]))
    wider = wide(q.dtype)
    with in_full(q):
        return _mix(q.to(wider) @ w.to(wider) @ k.to(wider).mT, k, v, visible)


def concat(
    q: Tensor,
    k: Tensor,
    v: Tensor | None = None,
    *,
    w: Tensor,
    w_score: Tensor,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """score(i, j) = w_score · tanh(W [q_i; k_j]) with w (a, m + e): `additive` with both matrices side by side
    (arXiv 1508.04025, section 3.1).
    """
    _fits("w", w, (w_score.shape[0], q.shape[-1] + k.shape[-1]))
    w_q, w_k = w.split((q.shape[-1], k.shape[-1]), dim=1)
    return additive(q, k, v, w_q=w_q, w_k=w_k, w_score=w_score, visible=visible)


def intra(
    x: Tensor,
    tape: Tensor,
    summary: Tensor,
    v: Tensor | None = None,
    *,
    w_tape: Tensor,
    w_x: Tensor,
    w_summary: Tensor,
    w_score: Tensor,
    visible: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One step of attention inside a sequence: score(j) = w_score · tanh(W_tape h_j + W_x x_t + W_summary h~_(t-1)).

    x (b, m) the token, tape (b, s, e) the hidden states so far, summary (b, e) what the step before returned. Mixing the
    tape gives the new summary h~_t (b, e); called with the memory tape as `v`, the memory's c~_t. Weights are (b, s).
    Source: arXiv 1601.06733, equations 4 to 6.
    """
    _fits("w_x", w_x, (w_score.shape[0], x.shape[-1]))
    _fits("w_summary", w_summary, (w_score.shape[0], summary.shape[-1]))
    query, w_q = torch.cat((x, summary), -1)[:, None], torch.cat((w_x, w_summary), -1)
    seen = None if visible is None else visible[:, None]
    mixed, weights = additive(query, tape, v, w_q=w_q, w_k=w_tape, w_score=w_score, visible=seen)
    return mixed[:, 0], weights[:, 0]


def _mix(logits: Tensor, k: Tensor, v: Tensor | None, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    if visible is not None:
        if visible.dtype != torch.bool:
            raise SpecError(f"visible must be boolean, True = may attend, found {visible.dtype}")
        batch, queries, keys = logits.shape
        check_shape("visible", visible, batch=batch, queries=queries, keys=keys)
        logits = torch.where(visible, logits, -torch.inf)
    weights, values = probabilities(logits), k if v is None else v
    return (weights @ values.to(weights.dtype)).to(k.dtype), weights.to(k.dtype)


def _fits(name: str, weight: Tensor, wanted: tuple[int, int]) -> None:
    if tuple(weight.shape) != wanted:
        raise SpecError(f"{name} must be {wanted}, found {tuple(weight.shape)}")
