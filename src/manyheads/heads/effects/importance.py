"""How much each head matters to the loss: in one backward pass, or by taking each away.

    head_importance(model, batches)                  Michel's first-order score of every head
    head_importance(model, batches, method="mean")   what the loss rises by when each head gives its mean instead

The first-order score of a head is the mean over sequences of |dL/dg|, g being a factor of 1 on its output: the
derivative is <out, dL/dout>, so no second pass is needed (arXiv 1905.10650, equation 2).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Heads
from manyheads.heads.attention_modules import ModuleIndex, head_table, select
from manyheads.heads.batches import Batch, BatchLike, as_batches
from manyheads.heads.effects.ablation import METHODS, ablate_heads
from manyheads.heads.effects.importance_scores import Importance, rank_correlation
from manyheads.heads.effects.metrics import Metric, measured
from manyheads.models.door.attentions import find_attentions
from manyheads.models.door.door import Call, open_door
from manyheads.quoting import shown

__all__ = ["FIRST_ORDER", "Importance", "asking", "backward", "frozen", "head_importance", "rank_correlation"]

FIRST_ORDER = "first-order"


def head_importance(
    model: Any,
    batches: Iterable[BatchLike],
    *,
    metric: Metric | None = None,
    method: str = FIRST_ORDER,
    heads: Heads | None = None,
    mode: Literal["eval"] | None = "eval",
    say: Callable[[int, int], None] = lambda *_: None,
) -> Importance:
    """The importance of `heads` (None: all) of a model of transformers for `metric` on `batches`.

    batches  what the model takes ({"input_ids": ..., "attention_mask": ...}), or token ids alone
    metric   a function of (outputs, batch), lower is better; None: the loss of the labels in the batch, or of the next token
             of a causal language model. For first-order it must be differentiable
    method   "first-order", or "zero", "mean" or "resample": exact ablation (`heads.effects.ablation`)
    mode     "eval" measures without dropout whatever mode the model is in; None leaves its modes, and with them gradient
             checkpointing, as they are (first-order only)
    say      told (passes done, passes to do)

    Weights may be frozen. Modes, requires_grad, gradients and configurations are afterwards as they were, also after an
    error. Raises ManyheadsError for a head or method that is not there, for text that has nothing to score, and for
    first-order scores under torch.no_grad(); BackendError where the model's attention does not pass through the door.
    """
    given = as_batches(model, batches)
    if method == FIRST_ORDER:
        return _first_order(model, given, metric, heads, mode, say)
    if method not in METHODS:
        raise ManyheadsError(f"method {shown(method)} is not one of {FIRST_ORDER}, {', '.join(METHODS)}")
    return ablate_heads(model, given, how=method, metric=metric, heads=heads, say=say)


class _Ones:
    """A gate that multiplies each head of each sequence by a 1 of its own, whose gradients are asked for."""

    def __init__(self) -> None:
        self.ones: dict[str, Tensor] = {}

    def __call__(self, call: Call, out: Tensor) -> Tensor:
        one = self.ones.get(call.path)
        if one is None:  # a module that is called again, or recomputed, has the same factors
            wide = out.dtype if out.dtype == torch.float64 else torch.float32
            one = torch.ones(out.shape[:2], dtype=wide, device=out.device, requires_grad=True)
            self.ones[call.path] = one
        return (out.to(one.dtype) * one[:, :, None, None]).to(out.dtype)


def _first_order(
    model: Any, batches: list[Batch], metric: Metric | None, heads: Heads | None, mode: Literal["eval"] | None,
    say: Callable[[int, int], None],
) -> Importance:  # fmt: skip
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        raise ManyheadsError(
            "first-order importance needs gradients and was called under torch.no_grad() or inference_mode(); call it "
            "outside, or use method='zero', 'mean' or 'resample', which need none"
        )
    began = time.perf_counter()
    ones, index = _Ones(), ModuleIndex(find_attentions(model))
    parts: list[dict[str, Tensor]] = []
    values, weights = [], []
    with frozen(model), asking(model), open_door(model, gates=[ones], observers=[index], mode=mode) as door:
        for number, batch in enumerate(batches):
            value, weight = measured(model, batch, metric)
            parts.append(_slopes(model, value, ones))
            ones.ones = {}
            values.append(value.item())
            weights.append(weight)
            say(number + 1, len(batches))
        modules = index.called(door)
    share = torch.tensor(weights, dtype=torch.float64) / sum(weights)
    chosen = select(modules, heads)
    by_batch, signed = (
        torch.stack([head_table(modules, {path: sums(g) for path, g in part.items()}, chosen=chosen) for part in parts])
        for sums in (lambda g: g.abs().sum(0), lambda g: g.sum(0))
    )
    baseline = float(torch.tensor(values, dtype=torch.float64) @ share)
    scores = torch.einsum("nrh,n->rh", by_batch, share)
    return Importance(
        FIRST_ORDER, scores, torch.zeros_like(scores, dtype=torch.bool), baseline, modules, by_batch, share,
        time.perf_counter() - began, torch.einsum("nrh,n->rh", signed, share),
    )  # fmt: skip


def _slopes(model: Any, value: Tensor, ones: _Ones) -> dict[str, Tensor]:
    """The gradients (sequences, heads) of the factors of each path. `value` is a mean over the batch, so that the sum of
    |gradients| over its sequences is their mean."""
    if not value.requires_grad:
        raise ManyheadsError(
            "the metric does not pass gradients back to the heads (a count, an argmax?), so it has no first-order score; "
            "use method='zero', 'mean' or 'resample' for it"
        )
    backward(model, value, list(ones.ones.values()))
    zero = {path: torch.zeros_like(one) for path, one in ones.ones.items()}
    return {path: (one.grad if one.grad is not None else zero[path]).cpu().double() for path, one in ones.ones.items()}


def backward(model: Any, value: Tensor, inputs: Sequence[Tensor]) -> None:
    """The gradients of `value` by `inputs`, put into their `grad`."""
    if _checkpoints(model):
        value.backward()  # re-entrant checkpointing refuses to be asked for chosen gradients
    else:
        value.backward(inputs=inputs)


@contextmanager
def frozen(model: Any) -> Iterator[None]:
    """No parameter of the model asks for a gradient inside; afterwards each asks as it did, its gradient untouched."""
    asked = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    if any(parameter.is_inference() for parameter, _ in asked):
        raise ManyheadsError(
            "the model was loaded under torch.inference_mode(), so nothing can be derived from it; load it outside"
        )
    try:
        for parameter, _ in asked:
            parameter.requires_grad_(requires_grad=False)
        yield
    finally:
        for parameter, before in asked:
            parameter.requires_grad_(requires_grad=before)


@contextmanager
def asking(model: Any) -> Iterator[None]:
    """Where gradient checkpointing is on, the embedded tokens ask for a gradient inside: its re-entrant form looks at
    nothing but its inputs, and would pass none back to what a layer is multiplied by."""
    hook = model.get_input_embeddings().register_forward_hook(_ask) if _checkpoints(model) else None
    try:
        yield
    finally:
        if hook is not None:
            hook.remove()


def _checkpoints(model: Any) -> bool:
    """Whether gradient checkpointing is on anywhere in the model."""
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


def _ask(module: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001  the signature of a hook
    if isinstance(output, Tensor) and not output.requires_grad:
        output.requires_grad_(requires_grad=True)
