"""Attention with one fault each. An output that equals a twin's, and not the right one, has that fault: so it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from manyheads.check import faults
from manyheads.check.problem import Problem, answer, default_scale, seen

__all__ = ["TWINS", "Twin", "diagnose", "recognise"]


@dataclass(frozen=True)
class Twin:
    """A fault: its name, what is to be said of it, the output it leads to, and public reports of it, owner/repo#N."""

    name: str
    says: str
    output: Callable[[Any], Tensor]
    resembles: tuple[str, ...] = ()


def diagnose(problem: Problem, found: Tensor, allowed: float, *, suspects: tuple[str, ...] = ()) -> Twin | None:
    """The twin whose output `found` is, if any; those of `suspects` are tried first, in their order."""
    return recognise(TWINS, problem, answer(problem), found, allowed, suspects=suspects)


def recognise(
    known: Iterable[Twin],
    problem: Problem,
    right: Tensor,
    found: Tensor,
    allowed: float,
    *,
    suspects: tuple[str, ...] = (),
) -> Twin | None:
    """The first of the known twins whose output `found` is, and that is not `right`.

    Rows of NaN are told from rows of zeros where there is a twin for each, and else taken for rows that see nothing; what
    such rows give is left out in the end.
    """
    exact, lenient, known = problem.to(torch.float64), _without_nan_rows(found), tuple(known)
    suspected = sorted((twin for twin in known if twin.name in suspects), key=lambda twin: suspects.index(twin.name))
    made: dict[str, Tensor] = {}

    def first(twins: Iterable[Twin], seen_as: Callable[[Tensor], Tensor], *outputs: Tensor) -> Twin | None:
        for twin in twins:
            if twin.name not in made:
                made[twin.name] = twin.output(exact)
            wrong = seen_as(made[twin.name])
            alike = any(_close(wrong, seen_as(output), allowed) for output in outputs)
            if alike and not _close(wrong, seen_as(right), allowed):
                return twin
        return None

    explained = first(suspected, lambda x: x, found, lenient) or first(known, lambda x: x, found)
    if explained is not None or not bool(found.isfinite().any()):
        return explained
    defined = _defined(exact, found)
    return first(known, lambda x: x, lenient) or (
        None if bool(defined.all()) else first(suspected or known, lambda x: x.masked_fill(~defined, 0.0), found)
    )


def _defined(exact: Problem, found: Tensor) -> Tensor:
    """(b, h, t, 1): whether a row sees anything; of heads that are joined, whether all of them do."""
    defined = seen(exact).any(-1)
    return (defined if defined.shape[1] == found.shape[1] else defined.all(1, keepdim=True))[..., None]


def _without_nan_rows(found: Tensor) -> Tensor:
    return found.masked_fill(found.isnan().all(-1, keepdim=True), 0.0)


def _close(a: Tensor, b: Tensor, allowed: float) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=0.0, atol=allowed, equal_nan=True)


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
_BLOCKED_AS_VISIBLE = (
    "the causal mask is the wrong way round: a mask that is True where it blocks (triu(diagonal=1)) is given where True "
    "means may attend, as in torch's scaled_dot_product_attention: queries see the future only"
)
_TWINS = (
    Twin("NaN on empty rows", "a row that sees nothing is softmax of -inf only, which is NaN; it gives zeros",
         lambda p: faults.written(p, empty="nan")),
    Twin("mean on empty rows", "a row that sees nothing gives the mean of all values: blocked scores are one finite number "
         "(such as -1e9), and softmax of equal numbers is uniform; such a row gives zeros",
         lambda p: faults.written(p, fill=-1e30)),
    Twin("open on empty rows", "a row that sees nothing attends to everything: a number such as -10000 was added to all of its "
         "scores, which changes nothing after softmax; such a row gives zeros", faults.open_on_empty),
    Twin("scale missing", "the scores are not divided by sqrt(dim): softmax gets too sharp as heads get wider",
         lambda p: faults.written(p, scale=1.0)),
    Twin("scale by d_model", "the scores are divided by sqrt(heads x dim), the model's width; it is sqrt(dim), the width of "
         "one head", lambda p: faults.written(p, scale=(p.q.shape[1] * faults.width(p)) ** -0.5)),
    Twin("scale by dim", "the scores are divided by dim; it is sqrt(dim)", lambda p: faults.written(p, scale=1 / faults.width(p))),
    Twin("scale upside down", "the scores are multiplied by sqrt(dim); they are divided by it",
         lambda p: faults.written(p, scale=faults.width(p) ** 0.5)),
    Twin("scale by keys", "the scores are divided by sqrt(number of keys); it is sqrt(dim)",
         lambda p: faults.written(p, scale=max(p.k.shape[2], 1) ** -0.5)),
    Twin("scale ignored", "the scale argument has no effect: 1/sqrt(dim) is used whatever is asked",
         lambda p: faults.written(p, scale=faults.width(p) ** -0.5)),
    Twin("scaled twice", "the scale argument and 1/sqrt(dim) are both applied; the argument replaces the default",
         lambda p: faults.written(p, scale=default_scale(p) * faults.width(p) ** -0.5)),
    Twin("scale as divisor", "the scores are divided by the scale argument; they are multiplied with it",
         lambda p: faults.written(p, scale=1 / default_scale(p))),
    Twin("scale by heads", "the scores are divided by sqrt(number of heads); it is sqrt(dim)",
         lambda p: faults.written(p, scale=p.q.shape[1] ** -0.5)),
    Twin("softmax twice", "softmax is applied twice: the weights get close to uniform",
         lambda p: faults.written(p, finish=faults.softmax_twice)),
    Twin("scale after softmax", "the weights are divided by sqrt(dim) after softmax; the scores are, before it",
         lambda p: faults.written(p, scale=1.0) * default_scale(p)),
    Twin("weights not normalised", "exp of the scores is not divided by its sum: the weights of a query do not add up to 1",
         lambda p: faults.written(p, finish=faults.not_normalised)),
    Twin("sigmoid for softmax", "a sigmoid stands where softmax belongs: the weights of a query do not add up to 1",
         lambda p: faults.written(p, finish=lambda scores, shown: torch.sigmoid(scores).masked_fill(~shown, 0.0))),
    Twin("keys viewed, not transposed", "the keys are viewed as (dim, keys) where they are to be transposed: transpose(-2, -1)",
         faults.keys_viewed),
    Twin("softmax missing", "the scores are used as weights without softmax: the weights of a query do not add up to 1",
         lambda p: faults.written(p, finish=lambda scores, shown: scores.masked_fill(~shown, 0.0))),
    Twin("lengths tiled over heads", "the lengths are tiled where the heads of a sequence stand together, so that heads get the "
         "length of another sequence: repeat_interleave(heads), not repeat(heads)", faults.lengths_tiled),
    Twin("lengths one more", "a token behind the length is seen: positions below the length are seen (<, not <=)",
         lambda p: faults.lengths_shifted(p, 1)),
    Twin("lengths one less", "the last token before the padding is left out: positions below the length are seen",
         lambda p: faults.lengths_shifted(p, -1)),
    Twin("padding of queries", "the padding hides queries where it should hide keys: [:, None, None, :] and not [:, None, :, None]",
         faults.padded_queries),
    Twin("softmax over queries", "softmax runs over the queries (dim=-2): it is the keys' weights that add up to 1 for each "
         "query (dim=-1)", lambda p: faults.written(p, axis=-2)),
    Twin("softmax over heads", "softmax runs over the heads (dim=1); it runs over the keys (dim=-1)",
         lambda p: faults.written(p, axis=1)),
    Twin("softmax over batch", "softmax runs over the batch (dim=0); it runs over the keys (dim=-1)",
         lambda p: faults.written(p, axis=0)),
    Twin("heads tiled", "the key/value heads are tiled (0, 1, 0, 1): query head h reads head h mod K. They are interleaved "
         "(0, 0, 1, 1): query head h reads head h // (H/K), as repeat_interleave gives and repeat does not",
         lambda p: faults.written(p, tiled=True)),
    Twin("first key/value head", "all query heads read the first key/value head; query head h reads head h // (H/K)",
         faults.first_head_only),
    Twin("weights transposed", "the weights are transposed before they meet the values: query i takes what key i gives "
         "to the queries", faults.weights_transposed),
    Twin("window ignored", "the window has no effect", lambda p: faults.written(p, visible=seen(replace(p, causal=p.causal or
         p.window is not None, window=None)))),
    Twin("window one more", "the window holds W + 1 keys; a window of W means W keys, the query's own token among them",
         lambda p: faults.written(p, visible=faults.resized_window(p, 1))),
    Twin("window one less", "the window holds W - 1 keys; a window of W means W keys, the query's own token among them",
         lambda p: faults.written(p, visible=faults.resized_window(p, -1))),
    Twin("window inverted", "the window works the wrong way round: queries see the keys outside of it (a mask that is True "
         "where it blocks is taken for one that is True where it shows)",
         lambda p: faults.written(p, visible=faults.outside_window(p))),
    Twin("window two-sided", "the window reaches into the future; it is causal",
         lambda p: faults.written(p, visible=faults.two_sided(p))),
    Twin("causal top-left", "the causal frontier starts at the top-left corner: query i sees keys 0..i. With a cache the "
         "queries are the last tokens: query i stands at position keys - queries + i (tril(diagonal=keys - queries))",
         lambda p: faults.written(p, visible=faults.frontier(p, top_left=True))),
    Twin("causal one short", "a query does not see itself: the diagonal is blocked (triu(diagonal=0); diagonal=1 is right)",
         lambda p: faults.written(p, visible=faults.frontier(p, shift=-1))),
    Twin("causal one short, NaN", "a query does not see itself: the diagonal is blocked, and the first row is NaN",
         lambda p: faults.written(p, visible=faults.frontier(p, shift=-1), empty="nan")),
    Twin("causal one ahead", "a query sees one token of the future (triu(diagonal=2); diagonal=1 is right)",
         lambda p: faults.written(p, visible=faults.frontier(p, shift=1))),
    Twin("causal reversed", "the causal mask is the wrong way round: queries see the future and not the past",
         lambda p: faults.written(p, visible=faults.reversed_causal(p))),
    Twin("causal inverted", _BLOCKED_AS_VISIBLE, lambda p: faults.written(p, visible=faults.hidden_by_rule(p))),
    Twin("causal inverted, NaN", f"{_BLOCKED_AS_VISIBLE}; rows that see nothing then are NaN",
         lambda p: faults.written(p, visible=faults.hidden_by_rule(p), empty="nan")),
    Twin("causal inverted, mean", f"{_BLOCKED_AS_VISIBLE}; rows that see nothing then give the mean of all values",
         lambda p: faults.written(p, visible=faults.hidden_by_rule(p), fill=-1e30)),
    Twin("causal or mask", "a key is seen where the mask or the causal flag allows it; it is seen where both do",
         lambda p: faults.written(p, visible=faults.rule_or_mask(p))),
    Twin("causal ignored", "the causal flag has no effect: queries see the future",
         lambda p: faults.written(p, visible=seen(faults.without_causal(p)))),
    Twin("mask inverted", "the mask works the wrong way round: what is blocked is what may be seen",
         lambda p: faults.written(p, visible=faults.inverted_mask(p))),
    Twin("mask inverted, NaN", "the mask works the wrong way round, and rows that see nothing then are NaN",
         lambda p: faults.written(p, visible=faults.inverted_mask(p), empty="nan")),
    Twin("mask ignored", "the mask has no effect", lambda p: faults.written(p, visible=faults.unmasked(p))),
    Twin("mask as zeros", "blocked scores become 0, and exp(0) = 1 is weight; they must become -inf before softmax",
         lambda p: faults.written(p, fill=0.0)),
    Twin("mask after softmax", "the mask is applied after softmax, so that the weights no longer add up to 1",
         faults.after_softmax),
    Twin("mask times infinity", "-inf is multiplied with the mask, and -inf · 0 is NaN: use masked_fill, or a finite number",
         faults.times_infinity),
    Twin("mask added", "the booleans are added to the scores as the numbers 1 and 0; they exclude", faults.added_mask),
    Twin("bias before scale", "the bias is added before the scores are scaled; it is added after", faults.bias_first),
    Twin("bias ignored", "the bias has no effect", lambda p: answer(replace(p, bias=None))),
    Twin("bias subtracted", "the bias is subtracted", lambda p: answer(replace(p, bias=None if p.bias is None else -p.bias))),
    Twin("bias inside softcap", "the bias is added before the softcap; it is added after", faults.bias_in_cap),
    Twin("softcap ignored", "the softcap has no effect", lambda p: answer(replace(p, softcap=None))),
    Twin("softcap before scale", "the softcap acts before the scale; it acts after", faults.cap_first),
    Twin("sinks ignored", "the sinks have no effect: the weights of a row add up to 1", lambda p: answer(replace(p, sinks=None))),
    Twin("sinks overflow", "exp(sink) overflows: the sink is left out where the largest logit is subtracted",
         faults.sinks_overflow),
    Twin("sinks scaled", "the sinks are scaled as the scores are; a sink is a logit as it stands", faults.sinks_scaled),
    Twin("heads cut without transpose", "the last axis is cut into heads with view(b, h, t, d); the order of the data is "
         "(b, t, h, d): view so, then transpose(1, 2)", faults.split_without_transpose),
    Twin("heads joined without transpose", "the heads are joined with view(b, t, h x d) from (b, h, t, d); transpose(1, 2) "
         "first", faults.merged_without_transpose),
    Twin("heads cut and joined without transpose", "the heads are cut and joined with view alone; the order of the data is "
         "(b, t, h, d): transpose(1, 2) after the cut and before the join", faults.both_without_transpose),
)  # fmt: skip
TWINS = tuple(replace(twin, resembles=_REPORTS.get(twin.name, ())) for twin in _TWINS)
"""In the order in which they are tried."""
