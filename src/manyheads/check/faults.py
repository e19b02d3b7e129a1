"""Attention with a step exchanged: what the wrong twins are made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from manyheads.check.problem import Problem, answer, answer_weights, default_scale, seen

__all__ = [
    "added_mask",
    "after_softmax",
    "bias_first",
    "bias_in_cap",
    "both_without_transpose",
    "cap_first",
    "first_head_only",
    "frontier",
    "hidden_by_rule",
    "inverted_mask",
    "keys_viewed",
    "lengths_shifted",
    "lengths_tiled",
    "merged_without_transpose",
    "not_normalised",
    "open_on_empty",
    "outside_window",
    "padded_queries",
    "resized_window",
    "reversed_causal",
    "rule_or_mask",
    "sinks_overflow",
    "sinks_scaled",
    "softmax_twice",
    "split_without_transpose",
    "times_infinity",
    "two_sided",
    "unmasked",
    "weights_transposed",
    "width",
    "without_causal",
    "written",
]


_LARGEST_POWER = 88.8  # exp of more is infinite in float32


def written(
    p: Problem,
    *,
    scale: float | None = None,
    visible: Tensor | None = None,
    axis: int = -1,
    tiled: bool = False,
    fill: float = -torch.inf,
    logits: Callable[[Tensor, float], Tensor] | None = None,
    finish: Callable[[Tensor, Tensor], Tensor] | None = None,
    empty: str = "zeros",
) -> Tensor:
    """Attention with a step exchanged.

    `logits` (q k^T, scale) replaces scale, softcap and bias; `finish` (logits, visible) replaces mask and softmax.
    `empty`: what a row that sees nothing gives, "zeros" or "nan".
    """
    k, v = _grouped(p.k, p.q.shape[1], tiled=tiled), _grouped(p.v, p.q.shape[1], tiled=tiled)
    raw, factor = p.q @ k.mT, default_scale(p) if scale is None else scale
    scores = _logits(p)(raw, factor) if logits is None else logits(raw, factor)
    shown = seen(p) if visible is None else visible
    if finish is not None:
        return finish(scores, shown) @ v
    scores = torch.where(shown, scores, fill)
    weights = _softmax(scores, p.sinks, axis)
    return (weights if empty == "nan" else weights.nan_to_num(0.0)) @ v


def _logits(p: Problem) -> Callable[[Tensor, float], Tensor]:
    def steps(raw: Tensor, factor: float) -> Tensor:
        scores = raw * factor
        if p.softcap is not None:
            scores = p.softcap * torch.tanh(scores / p.softcap)
        return scores if p.bias is None else scores + p.bias

    return steps


def _softmax(scores: Tensor, sinks: Tensor | None, axis: int = -1) -> Tensor:
    if sinks is None:
        return torch.softmax(scores, axis)
    column = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    return torch.softmax(torch.cat((scores, column), -1), -1)[..., :-1]


def _grouped(x: Tensor, heads: int, *, tiled: bool) -> Tensor:
    times = heads // x.shape[1]
    return x.repeat(1, times, 1, 1) if tiled else x.repeat_interleave(times, 1)


def _positions(p: Problem) -> tuple[Tensor, Tensor]:
    return torch.arange(p.q.shape[2])[:, None], torch.arange(p.k.shape[2])[None, :]


def frontier(p: Problem, *, shift: int = 0, top_left: bool = False) -> Tensor:
    """The rule with another causal frontier: key <= query + shift."""
    query, key = _positions(p)
    offset = 0 if top_left else p.k.shape[2] - p.q.shape[2]
    ahead = key - (query + offset)
    rule = ahead <= shift
    if p.window is not None:
        rule = rule & (ahead > shift - p.window)
    return seen(without_causal(p)) & rule if _is_causal(p) else seen(p)


def without_causal(p: Problem) -> Problem:
    return replace(p, causal=False, window=None)


def _is_causal(p: Problem) -> bool:
    return p.causal or p.window is not None


def resized_window(p: Problem, change: int) -> Tensor:
    """The window with `change` keys more."""
    if p.window is None:
        return seen(p)
    query, key = _positions(p)
    back = query + (p.k.shape[2] - p.q.shape[2]) - key
    return seen(without_causal(p)) & (back >= 0) & (back < p.window + change)


def two_sided(p: Problem) -> Tensor:
    if p.window is None:
        return seen(p)
    query, key = _positions(p)
    return seen(without_causal(p)) & ((key - query - (p.k.shape[2] - p.q.shape[2])).abs() < p.window)


def reversed_causal(p: Problem) -> Tensor:
    query, key = _positions(p)
    return seen(without_causal(p)) & (key - query >= p.k.shape[2] - p.q.shape[2]) if p.causal else seen(p)


def hidden_by_rule(p: Problem) -> Tensor:
    """What the causal rule hides, and nothing that it shows."""
    return _outside(p) if p.window is None else seen(p)


def outside_window(p: Problem) -> Tensor:
    """What the window hides, and nothing that it shows."""
    return seen(p) if p.window is None else _outside(p)


def _outside(p: Problem) -> Tensor:
    return seen(without_causal(p)) & ~seen(replace(p, visible=None, keep=None)) if _is_causal(p) else seen(p)


def rule_or_mask(p: Problem) -> Tensor:
    """The mask and the causal rule joined by "or"."""
    if not _is_causal(p) or _mask(p) is None:
        return seen(p)
    return seen(without_causal(p)) | seen(replace(p, visible=None, keep=None))


def first_head_only(p: Problem) -> Tensor:
    """The first key/value head for all query heads, where there are several."""
    return answer(replace(p, k=p.k[:, :1], v=p.v[:, :1]))


def lengths_tiled(p: Problem) -> Tensor:
    """Row i of (batch x heads) with the padding of sequence i mod batch."""
    (b, h, _, _), s = p.q.shape, p.k.shape[2]
    if p.keep is None or b == 1:
        return answer(p)
    at = (torch.arange(b * h) % b).view(b, h)
    kept = p.keep.cpu()[at].view(b, h, 1, s)
    return written(p, visible=seen(replace(p, keep=None)) & kept)


def lengths_shifted(p: Problem, more: int) -> Tensor:
    """Where the padding is at the end: so many tokens more."""
    if p.keep is None:
        return answer(p)
    keep = p.keep.cpu()
    at, lengths = torch.arange(keep.shape[-1]), keep.sum(-1, keepdim=True)
    if not bool((keep == (at < lengths)).all()):
        return answer(p)
    return answer(replace(p, keep=(at < lengths + more).to(p.keep.device)))


def not_normalised(scores: Tensor, shown: Tensor) -> Tensor:
    """exp(score - the largest)."""
    scores = scores.masked_fill(~shown, -torch.inf)
    return torch.exp(scores - scores.amax(-1, keepdim=True)) if scores.shape[-1] else scores


def times_infinity(p: Problem) -> Tensor:
    """NaN in all rows that have a mask."""
    return answer(p) if _mask(p) is None else torch.full_like(answer(p), torch.nan)


def softmax_twice(scores: Tensor, shown: Tensor) -> Tensor:
    """Softmax of softmax."""
    once = torch.softmax(scores.masked_fill(~shown, -torch.inf), -1).nan_to_num(0.0)
    return torch.softmax(once, -1)


def keys_viewed(p: Problem) -> Tensor:
    """q times k.view(.., dim, keys), with all that is asked else."""
    k = _grouped(p.k, p.q.shape[1], tiled=False)
    viewed = k.reshape(*k.shape[:2], k.shape[3], k.shape[2]).mT
    return answer(replace(p, k=viewed, v=_grouped(p.v, p.q.shape[1], tiled=False)))


def padded_queries(p: Problem) -> Tensor:
    """The padding along the queries."""
    if p.keep is None or p.q.shape[2] != p.k.shape[2]:
        return answer(p)
    return written(p, visible=seen(replace(p, keep=None)) & p.keep.cpu()[:, None, :, None])


def weights_transposed(p: Problem) -> Tensor:
    """The weights of self-attention transposed."""
    if p.q.shape[2] != p.k.shape[2]:
        return answer(p)
    return answer_weights(p).mT @ _grouped(p.v.double(), p.q.shape[1], tiled=False)


def sinks_overflow(p: Problem) -> Tensor:
    """NaN where exp(sink - largest score) is infinite in float32."""
    out = answer(p)
    if p.sinks is None:
        return out
    shown = (p.q @ _grouped(p.k, p.q.shape[1], tiled=False).mT * default_scale(p)).masked_fill(~seen(p), -torch.inf)
    above = p.sinks.view(1, -1, 1, 1) - shown.amax(-1, keepdim=True)
    return out.masked_fill(above > _LARGEST_POWER, torch.nan)


def _mask(p: Problem) -> Tensor | None:
    return p.visible if p.visible is not None else None if p.keep is None else p.keep[:, None, None, :]


def inverted_mask(p: Problem) -> Tensor:
    visible = None if p.visible is None else ~p.visible
    return seen(replace(p, visible=visible, keep=None if p.keep is None else ~p.keep))


def unmasked(p: Problem) -> Tensor:
    return seen(replace(p, visible=None, keep=None))


def added_mask(p: Problem) -> Tensor:
    """The booleans added to the scores as 1 and 0."""
    mask = _mask(p)
    extra = 0.0 if mask is None else mask.double()
    return written(p, visible=unmasked(p), logits=lambda raw, factor: _logits(p)(raw, factor) + extra)


def after_softmax(p: Problem) -> Tensor:
    return written(p, finish=lambda scores, shown: _softmax(scores, p.sinks) * shown)


def open_on_empty(p: Problem) -> Tensor:
    shown = seen(p)
    return written(p, visible=shown | ~shown.any(-1, keepdim=True))


def bias_first(p: Problem) -> Tensor:
    extra = 0.0 if p.bias is None else p.bias
    return written(
        replace(p, bias=None), logits=lambda raw, factor: _logits(replace(p, bias=None))(raw + extra, factor)
    )


def bias_in_cap(p: Problem) -> Tensor:
    if p.bias is None or p.softcap is None:
        return answer(p)
    cap, extra = p.softcap, p.bias
    return written(p, logits=lambda raw, factor: cap * torch.tanh((raw * factor + extra) / cap))


def cap_first(p: Problem) -> Tensor:
    if p.softcap is None:
        return answer(p)
    cap = p.softcap
    return written(p, logits=lambda raw, factor: cap * torch.tanh(raw / cap) * factor)


def sinks_scaled(p: Problem) -> Tensor:
    return answer(p if p.sinks is None else replace(p, sinks=p.sinks * default_scale(p)))


def split_without_transpose(p: Problem) -> Tensor:
    """Packed heads cut with view(b, h, t, d), where view(b, t, h, d).transpose(1, 2) is right."""

    def cut(x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape)

    return answer(replace(p, q=cut(p.q), k=cut(p.k), v=cut(p.v)))


def merged_without_transpose(p: Problem) -> Tensor:
    """Heads joined with view(b, t, h·d) straight from (b, h, t, d)."""
    out = answer(p)
    b, h, t, d = out.shape
    return out.reshape(b, t, h, d).transpose(1, 2)


def both_without_transpose(p: Problem) -> Tensor:
    """Both of these: shapes are right, and head h of token t gets what belongs elsewhere."""

    def cut(x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape)

    return merged_without_transpose(replace(p, q=cut(p.q), k=cut(p.k), v=cut(p.v)))


def width(p: Problem) -> int:
    return int(p.q.shape[-1])
