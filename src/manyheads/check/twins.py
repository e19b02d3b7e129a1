"""Attention with one fault each. An output that equals a twin's, and not the right one, has that fault: so it is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from manyheads.check.problem import Problem, answer, default_scale, seen

__all__ = ["TWINS", "Twin", "diagnose"]


@dataclass(frozen=True)
class Twin:
    """A fault: its name, what is to be said of it, the output it leads to, and public reports of it, owner/repo#N."""

    name: str
    says: str
    output: Callable[[Problem], Tensor]
    resembles: tuple[str, ...] = ()


def diagnose(problem: Problem, found: Tensor, allowed: float, *, suspect: str = "") -> Twin | None:
    """The twin whose output `found` is, if any; `suspect` is tried first. The right answer is not asked again."""
    right, exact = answer(problem), problem.to(torch.float64)
    for twin in sorted(TWINS, key=lambda twin: twin.name != suspect):
        wrong = twin.output(exact)
        if _close(wrong, found, allowed) and not _close(wrong, right, allowed):
            return twin
    return None


def _close(a: Tensor, b: Tensor, allowed: float) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0.0, atol=allowed, equal_nan=True)


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


def _frontier(p: Problem, *, shift: int = 0, top_left: bool = False) -> Tensor:
    """The rule with another causal frontier: key <= query + shift."""
    query, key = _positions(p)
    offset = 0 if top_left else p.k.shape[2] - p.q.shape[2]
    ahead = key - (query + offset)
    rule = ahead <= shift
    if p.window is not None:
        rule = rule & (ahead > shift - p.window)
    return seen(_open(p)) & rule if _is_causal(p) else seen(p)


def _open(p: Problem) -> Problem:
    return replace(p, causal=False, window=None)


def _is_causal(p: Problem) -> bool:
    return p.causal or p.window is not None


def _window(p: Problem, change: int) -> Tensor:
    return seen(p) if p.window is None else seen(replace(p, window=max(p.window + change, 1)))


def _two_sided(p: Problem) -> Tensor:
    if p.window is None:
        return seen(p)
    query, key = _positions(p)
    return seen(_open(p)) & ((key - query - (p.k.shape[2] - p.q.shape[2])).abs() < p.window)


def _reversed(p: Problem) -> Tensor:
    query, key = _positions(p)
    return seen(_open(p)) & (key - query >= p.k.shape[2] - p.q.shape[2]) if p.causal else seen(p)


def _mask(p: Problem) -> Tensor | None:
    return p.visible if p.visible is not None else None if p.keep is None else p.keep[:, None, None, :]


def _inverted(p: Problem) -> Tensor:
    visible = None if p.visible is None else ~p.visible
    return seen(replace(p, visible=visible, keep=None if p.keep is None else ~p.keep))


def _unmasked(p: Problem) -> Tensor:
    return seen(replace(p, visible=None, keep=None))


def _added(p: Problem) -> Tensor:
    """The booleans added to the scores as 1 and 0."""
    mask = _mask(p)
    extra = 0.0 if mask is None else mask.double()
    return written(p, visible=_unmasked(p), logits=lambda raw, factor: _logits(p)(raw, factor) + extra)


def _after_softmax(p: Problem) -> Tensor:
    return written(p, finish=lambda scores, shown: _softmax(scores, p.sinks) * shown)


def _open_on_empty(p: Problem) -> Tensor:
    shown = seen(p)
    return written(p, visible=shown | ~shown.any(-1, keepdim=True))


def _bias_first(p: Problem) -> Tensor:
    extra = 0.0 if p.bias is None else p.bias
    return written(
        replace(p, bias=None), logits=lambda raw, factor: _logits(replace(p, bias=None))(raw + extra, factor)
    )


def _bias_in_cap(p: Problem) -> Tensor:
    if p.bias is None or p.softcap is None:
        return answer(p)
    cap, extra = p.softcap, p.bias
    return written(p, logits=lambda raw, factor: cap * torch.tanh((raw * factor + extra) / cap))


def _cap_first(p: Problem) -> Tensor:
    if p.softcap is None:
        return answer(p)
    cap = p.softcap
    return written(p, logits=lambda raw, factor: cap * torch.tanh(raw / cap) * factor)


def _sinks_scaled(p: Problem) -> Tensor:
    return answer(p if p.sinks is None else replace(p, sinks=p.sinks * default_scale(p)))


def _split_without_transpose(p: Problem) -> Tensor:
    """Packed heads cut with view(b, h, t, d), where view(b, t, h, d).transpose(1, 2) is right."""

    def cut(x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape)

    return answer(replace(p, q=cut(p.q), k=cut(p.k), v=cut(p.v)))


def _merged_without_transpose(p: Problem) -> Tensor:
    """Heads joined with view(b, t, h·d) straight from (b, h, t, d)."""
    out = answer(p)
    b, h, t, d = out.shape
    return out.reshape(b, t, h, d).transpose(1, 2)


def _both_without_transpose(p: Problem) -> Tensor:
    """Both of these: shapes are right, and head h of token t gets what belongs elsewhere."""

    def cut(x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape)

    return _merged_without_transpose(replace(p, q=cut(p.q), k=cut(p.k), v=cut(p.v)))


def _width(p: Problem) -> int:
    return int(p.q.shape[-1])


_REPORTS = {
    "NaN on empty rows": (
        "pytorch/pytorch#160064",
        "pytorch/pytorch#41508",
    ),
    "mean on empty rows": ("pytorch/pytorch#81077",),
    "scale missing": ("ml-explore/mlx-examples#1013",),
    "scale by d_model": ("vllm-project/vllm#48658",),
    "scale ignored": ("ml-explore/mlx-swift-examples#99",),
    "heads tiled": ("onnx/onnx#7274",),
    "causal top-left": ("pytorch/pytorch#108108",),
    "causal ignored": ("keras-team/keras#23038",),
    "mask inverted": (
        "neuro-galaxy/torch_brain#74",
        "pytorch/pytorch#170415",
    ),
    "mask inverted, NaN": (
        "neuro-galaxy/torch_brain#74",
        "pytorch/pytorch#170415",
    ),
    "mask ignored": ("pytorch/pytorch#92554",),
    "mask added": ("pytorch/pytorch#147209",),
    "window ignored": ("unslothai/unsloth#8253",),
    "window one more": (
        "huggingface/transformers#26792",
        "huggingface/transformers#29623",
    ),
    "softcap ignored": ("vllm-project/vllm-metal#665",),
    "sinks ignored": ("vllm-project/vllm-metal#550",),
}
_TWINS = (
    Twin("NaN on empty rows", "a row that sees nothing is softmax of -inf only, which is NaN; it gives zeros",
         lambda p: written(p, empty="nan")),
    Twin("mean on empty rows", "a row that sees nothing gives the mean of all values: blocked scores are one finite number "
         "(such as -1e9), and softmax of equal numbers is uniform; such a row gives zeros",
         lambda p: written(p, fill=-1e30)),
    Twin("open on empty rows", "a row that sees nothing attends to everything: a number such as -10000 was added to all of its "
         "scores, which changes nothing after softmax; such a row gives zeros", _open_on_empty),
    Twin("scale missing", "the scores are not divided by sqrt(dim): softmax gets too sharp as heads get wider",
         lambda p: written(p, scale=1.0)),
    Twin("scale by d_model", "the scores are divided by sqrt(heads x dim), the model's width; it is sqrt(dim), the width of "
         "one head", lambda p: written(p, scale=(p.q.shape[1] * _width(p)) ** -0.5)),
    Twin("scale by dim", "the scores are divided by dim; it is sqrt(dim)", lambda p: written(p, scale=1 / _width(p))),
    Twin("scale upside down", "the scores are multiplied by sqrt(dim); they are divided by it",
         lambda p: written(p, scale=_width(p) ** 0.5)),
    Twin("scale by keys", "the scores are divided by sqrt(number of keys); it is sqrt(dim)",
         lambda p: written(p, scale=max(p.k.shape[2], 1) ** -0.5)),
    Twin("scale ignored", "the scale argument has no effect: 1/sqrt(dim) is used whatever is asked",
         lambda p: written(p, scale=_width(p) ** -0.5)),
    Twin("scaled twice", "the scale argument and 1/sqrt(dim) are both applied; the argument replaces the default",
         lambda p: written(p, scale=default_scale(p) * _width(p) ** -0.5)),
    Twin("scale as divisor", "the scores are divided by the scale argument; they are multiplied with it",
         lambda p: written(p, scale=1 / default_scale(p))),
    Twin("softmax over queries", "softmax runs over the queries (dim=-2): it is the keys' weights that add up to 1 for each "
         "query (dim=-1)", lambda p: written(p, axis=-2)),
    Twin("softmax over heads", "softmax runs over the heads (dim=1); it runs over the keys (dim=-1)",
         lambda p: written(p, axis=1)),
    Twin("softmax over batch", "softmax runs over the batch (dim=0); it runs over the keys (dim=-1)",
         lambda p: written(p, axis=0)),
    Twin("heads tiled", "the key/value heads are tiled (0, 1, 0, 1): query head h reads head h mod K. They are interleaved "
         "(0, 0, 1, 1): query head h reads head h // (H/K), as repeat_interleave gives and repeat does not",
         lambda p: written(p, tiled=True)),
    Twin("causal top-left", "the causal frontier starts at the top-left corner: query i sees keys 0..i. With a cache the "
         "queries are the last tokens: query i stands at position keys - queries + i (tril(diagonal=keys - queries))",
         lambda p: written(p, visible=_frontier(p, top_left=True))),
    Twin("causal one short", "a query does not see itself: the diagonal is blocked (triu(diagonal=0); diagonal=1 is right)",
         lambda p: written(p, visible=_frontier(p, shift=-1))),
    Twin("causal one short, NaN", "a query does not see itself: the diagonal is blocked, and the first row is NaN",
         lambda p: written(p, visible=_frontier(p, shift=-1), empty="nan")),
    Twin("causal one ahead", "a query sees one token of the future (triu(diagonal=2); diagonal=1 is right)",
         lambda p: written(p, visible=_frontier(p, shift=1))),
    Twin("causal reversed", "the causal mask is the wrong way round: queries see the future and not the past",
         lambda p: written(p, visible=_reversed(p))),
    Twin("causal ignored", "the causal flag has no effect: queries see the future",
         lambda p: written(p, visible=seen(_open(p)))),
    Twin("mask inverted", "the mask works the wrong way round: what is blocked is what may be seen",
         lambda p: written(p, visible=_inverted(p))),
    Twin("mask inverted, NaN", "the mask works the wrong way round, and rows that see nothing then are NaN",
         lambda p: written(p, visible=_inverted(p), empty="nan")),
    Twin("mask ignored", "the mask has no effect", lambda p: written(p, visible=_unmasked(p))),
    Twin("mask as zeros", "blocked scores become 0, and exp(0) = 1 is weight; they must become -inf before softmax",
         lambda p: written(p, fill=0.0)),
    Twin("mask after softmax", "the mask is applied after softmax, so that the weights no longer add up to 1",
         _after_softmax),
    Twin("mask added", "the booleans are added to the scores as the numbers 1 and 0; they exclude", _added),
    Twin("window ignored", "the window has no effect", lambda p: written(p, visible=seen(replace(p, causal=p.causal or
         p.window is not None, window=None)))),
    Twin("window one more", "the window holds W + 1 keys; a window of W means W keys, the query's own token among them",
         lambda p: written(p, visible=_window(p, 1))),
    Twin("window one less", "the window holds W - 1 keys; a window of W means W keys, the query's own token among them",
         lambda p: written(p, visible=_window(p, -1))),
    Twin("window two-sided", "the window reaches into the future; it is causal",
         lambda p: written(p, visible=_two_sided(p))),
    Twin("bias before scale", "the bias is added before the scores are scaled; it is added after", _bias_first),
    Twin("bias ignored", "the bias has no effect", lambda p: answer(replace(p, bias=None))),
    Twin("bias subtracted", "the bias is subtracted", lambda p: answer(replace(p, bias=None if p.bias is None else -p.bias))),
    Twin("bias inside softcap", "the bias is added before the softcap; it is added after", _bias_in_cap),
    Twin("softcap ignored", "the softcap has no effect", lambda p: answer(replace(p, softcap=None))),
    Twin("softcap before scale", "the softcap acts before the scale; it acts after", _cap_first),
    Twin("sinks ignored", "the sinks have no effect: the weights of a row add up to 1", lambda p: answer(replace(p, sinks=None))),
    Twin("sinks scaled", "the sinks are scaled as the scores are; a sink is a logit as it stands", _sinks_scaled),
    Twin("heads cut without transpose", "the last axis is cut into heads with view(b, h, t, d); the order of the data is "
         "(b, t, h, d): view so, then transpose(1, 2)", _split_without_transpose),
    Twin("heads joined without transpose", "the heads are joined with view(b, t, h x d) from (b, h, t, d); transpose(1, 2) "
         "first", _merged_without_transpose),
    Twin("heads cut and joined without transpose", "the heads are cut and joined with view alone; the order of the data is "
         "(b, t, h, d): transpose(1, 2) after the cut and before the join", _both_without_transpose),
)  # fmt: skip
TWINS = tuple(replace(twin, resembles=_REPORTS.get(twin.name, ())) for twin in _TWINS)
"""In the order in which they are tried."""
