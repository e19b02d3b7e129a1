"""Softmax attention, written out: the twin that every faster form is held against.

    A = softmax(mask(cap(scale · q k^T) + bias)),  y = A v

One order everywhere: scale, softcap, bias and masks, sinks, softmax. Computed in float32 or wider and cast back once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops import dropout as drop
from manyheads.ops.answer import Answer, Yes
from manyheads.ops.bias import Additive
from manyheads.ops.call import AttentionCall
from manyheads.ops.layout import group, ranked, ungroup
from manyheads.ops.precision import in_full, wide
from manyheads.ops.predicates import Everything, Visible
from manyheads.quoting import shown

__all__ = ["STAGES", "attention", "block", "logits", "probabilities", "run", "run_with_weights", "scores", "supports"]

STAGES = ("scaled", "capped", "masked", "probabilities")


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
    return_weights: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """y_h = softmax(cap(scale · q_h k_j^T) + bias_h, visible) v_j with j = h // (H/K); (b, h, t, v).

    q (b, h, t, q), k (b, k, s, q), v (b, k, s, v). A query that sees nothing gives zeros, with zero gradients.

    scale           factor on the logits
    visible         predicate or boolean tensor, True = may attend; None: everything
    bias            added after scale and softcap; broadcasts to (b, h, t, s), right-aligned as visible is; (h, t, s) is
                    refused where b = h > 1, since it might be (b, t, s): write [None] or [:, None]
    softcap         logits become softcap · tanh(logits / softcap) (Gemma 2, arXiv 2408.00118)
    sinks           (h,) one extra logit a head in the denominator, its column dropped (gpt-oss)
    dropout         share of the probabilities set to zero, the others divided by 1 - dropout; 0 when not training
    offset          absolute position of the first query, an int or one a sequence; None: keys - queries
    return_weights  also return the probabilities (b, h, t, s), taken before dropout

    What is not visible must still be finite: zero times NaN is NaN. Source: arXiv 1706.03762, section 3.2.1;
    grouped heads 2305.13245.
    """
    call = AttentionCall.checked(
        q, k, v, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, dropout=dropout, offset=offset
    )
    return run_with_weights(call) if return_weights else run(call)


def supports(call: AttentionCall) -> Answer:  # noqa: ARG001 - a backend is asked
    """Yes: every call."""
    return Yes()


def run(call: AttentionCall) -> Tensor:
    """The output (b, h, t, v) of a call."""
    return run_with_weights(call)[0]


def run_with_weights(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """The output (b, h, t, v), and the probabilities before dropout (b, h, t, s)."""
    q, v = call.q, call.v
    weights = probabilities(_masked(_capped(_scaled(q, call.k, call.scale), call), call), call.sinks)
    kept = weights
    if call.dropout:
        kept = weights * drop.factor(drop.seed(q.device), call.all_pairs(), share=call.dropout, dtype=weights.dtype)
    with in_full(q):
        out = ungroup(group(kept, v.shape[1]) @ v.to(weights.dtype), q.shape[1]).to(q.dtype)
    return out, weights.to(q.dtype)


def scores(
    q: Tensor,
    k: Tensor,
    *,
    scale: float,
    stage: str = "masked",
    visible: Visible | Tensor | None = None,
    bias: Tensor | Additive | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    offset: int | Tensor | None = None,
) -> Tensor:
    """The logits (b, h, t, s) of q (b, h, t, q) and k (b, k, s, q) on their way: "scaled", then "capped", then "masked" (bias
    added, -inf where not visible), then "probabilities" (zeros where a query sees nothing). ONNX Attention's score output,
    modes 0 to 3.
    """
    if stage not in STAGES:
        raise SpecError(f"stage must be one of {', '.join(STAGES)}; found {shown(stage)}")
    return logits(
        AttentionCall.checked(
            q, k, k, scale=scale, visible=visible, bias=bias, softcap=softcap, sinks=sinks, offset=offset
        ),
        stage,
    )


def logits(call: AttentionCall, stage: str) -> Tensor:
    """`scores` of a call, (b, h, t, s)."""
    found = _scaled(call.q, call.k, call.scale)
    if stage != "scaled":
        found = _capped(found, call)
    if stage in ("masked", "probabilities"):
        found = _masked(found, call)
    if stage == "probabilities":
        found = probabilities(found, call.sinks)
    return found.to(call.q.dtype)


def block(call: AttentionCall, rows: slice, columns: slice) -> Tensor:
    """The probabilities (b, h, rows, columns) of some queries, in float32 or wider; the keys outside `columns` must be
    invisible to all of them."""
    found = _capped(_scaled(call.q[:, :, rows], call.k[:, :, columns], call.scale), call)
    at = call.pairs(rows, columns)
    if isinstance(call.bias, Tensor):
        bias = ranked(call.bias)
        found = found + bias[:, :, rows if bias.shape[2] != 1 else slice(None), columns].to(found.dtype)
    elif call.bias is not None:
        found = found + call.bias.tile(at, found.dtype)
    if not isinstance(call.visible, Everything):
        found = torch.where(call.visible.tile(at), found, -torch.inf)
    return probabilities(found, call.sinks)


def probabilities(logits: Tensor, sinks: Tensor | None = None) -> Tensor:
    """exp(l) / (sum of exp(l) + exp(sink)) over the last axis, in the dtype of the logits; a row of -inf becomes zeros.

    `sinks` (h,) belong to axis -3 of the logits (.., h, t, s); None for none.
    """
    top = logits.detach()
    top = top.amax(-1, keepdim=True) if top.shape[-1] else top.new_full((*top.shape[:-1], 1), -torch.inf)
    sinks = None if sinks is None else sinks.to(logits.dtype)[:, None, None]
    if sinks is not None:
        top = torch.maximum(top, sinks.detach())
    top = torch.where(top == -torch.inf, 0.0, top)
    powers = torch.exp(logits - top)
    total = powers.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sinks - top)
    return powers / torch.where(total == 0, 1.0, total)


def _scaled(q: Tensor, k: Tensor, scale: float) -> Tensor:
    compute = wide(q.dtype)
    with in_full(q):
        return ungroup(group(q.to(compute) * scale, k.shape[1]) @ k.to(compute).mT, q.shape[1])


def _capped(logits: Tensor, call: AttentionCall) -> Tensor:
    return logits if call.softcap is None else call.softcap * torch.tanh(logits / call.softcap)


def _masked(logits: Tensor, call: AttentionCall) -> Tensor:
    at = call.all_pairs()
    if call.bias is not None:
        bias = call.bias if isinstance(call.bias, Tensor) else call.bias.tile(at, logits.dtype)
        logits = logits + bias.to(logits.dtype)
    if isinstance(call.visible, Everything):
        return logits
    return torch.where(call.visible.tile(at), logits, -torch.inf)
