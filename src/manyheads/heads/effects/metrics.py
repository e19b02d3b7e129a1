"""What a model is judged by while heads are taken away: its own loss, or any function of its output. Lower is better."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.batches import Batch, packed

__all__ = [
    "IGNORED",
    "Metric",
    "is_causal",
    "measured",
    "next_token_loss",
    "summed_cross_entropy",
]

# Takes the model's output and the batch; returns a mean over what it judges, lower is better, and may add the number of
# things that it is the mean of: (value, count). Without it each sequence counts once.
Metric = Callable[[Any, Batch], Tensor | tuple[Tensor, float]]

IGNORED = -100  # the label that transformers does not score
_BLOCK_NUMBERS = 1 << 22  # logits that a loss is made of at a time


def _own_metric(model: Any, batch: Batch) -> Metric:
    """With labels in the batch the model's own loss; a causal language model has that of the next token without any."""
    if "labels" in batch:
        shifted = 1 if is_causal(model) else 0
        return lambda outputs, given: _own_loss(outputs, given, shifted=shifted)
    if is_causal(model):
        return next_token_loss
    raise ManyheadsError(
        f"{type(model).__name__} is no causal language model and the batch has no labels, so it has no loss; valid: "
        'batches with "labels", or metric=, a function of (outputs, batch)'
    )


def is_causal(model: Any) -> bool:
    """Whether the class of a model of transformers is one of causal language models."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    known = {
        name
        for names in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
        for name in ([names] if isinstance(names, str) else names)
    }
    return any(kind.__name__ in known for kind in type(model).__mro__)


def _own_loss(outputs: Any, batch: Batch, *, shifted: int) -> tuple[Tensor, float]:
    loss = getattr(outputs, "loss", None)
    if loss is None:
        raise ManyheadsError("the batch has labels and the model returned no loss for them; pass metric=")
    labels = batch["labels"]
    return loss, int((labels[:, shifted:] != IGNORED).sum()) if labels.dim() > 1 else len(labels)


def next_token_loss(outputs: Any, batch: Batch, *, before: int = 0, after: int = 0) -> tuple[Tensor, float]:
    """Mean negative log-likelihood of each token after the first of its text, in nats; padding is left out.

    `before` and `after` tokens at the ends of each sequence are its frame (beginning of text, separators): they are read
    and not scored, and the first token behind the frame is not scored either, so that the same tokens are scored with a
    frame and without.
    """
    ids, logits = batch.get("input_ids"), getattr(outputs, "logits", None)
    if ids is None or logits is None:
        missing = "input_ids in the batch" if ids is None else "logits in what the model returned"
        raise ManyheadsError(f"there are no {missing}, which the loss of the next token needs; pass metric=")
    # One label a row of logits, the last row's ignored: cutting the logits instead would copy them.
    labels = torch.cat((ids[:, 1:], torch.full_like(ids[:, :1], IGNORED)), 1)
    mask = batch.get("attention_mask")
    if mask is not None:
        # A first token behind left padding would be guessed from padding.
        seen = (mask[:, 1:] != 0) & (mask[:, :-1] != 0)
        labels[:, :-1].masked_fill_(~seen, IGNORED)
    begins = packed(batch)
    if begins is not None:  # the first token of a text is not guessed from the one before it in its row
        labels[:, :-1].masked_fill_(begins[:, 1:], IGNORED)
    labels[:, :before] = IGNORED
    if after:
        labels[:, -after - 1 :] = IGNORED
    count = int((labels != IGNORED).sum())
    if not count:
        raise ManyheadsError(
            f"a batch of shape {tuple(ids.shape)} has no token whose loss could be measured; expected a text of at least 2 tokens"
        )
    return summed_cross_entropy(logits, labels) / count, count


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum of -log p of `labels` (b, n), -100 for none, given `logits` (b, n, vocabulary), in float32 or wider.

    It goes over some rows at a time: a float32 copy of all logits, and their softmax beside it, cost more in fresh memory
    than in arithmetic. `split` and no slices, since a slice has a gradient as large as all logits.
    """
    rows = max(_BLOCK_NUMBERS // max(len(logits) * logits.shape[-1], 1), 1)
    wide = logits.dtype if logits.dtype == torch.float64 else torch.float32
    total = logits.new_zeros((), dtype=wide)
    for part, own in zip(logits.split(rows, 1), labels.split(rows, 1), strict=True):
        total = total + torch.nn.functional.cross_entropy(
            part.to(wide).flatten(0, 1), own.flatten(), ignore_index=IGNORED, reduction="sum"
        )
    return total


def measured(model: Any, batch: Batch, metric: Metric | None) -> tuple[Tensor, float]:
    """(value, weight) of the metric on a batch; None: the loss of the model.

    ManyheadsError where it is not one finite number, and for a model that is no causal language model and has no labels.
    """
    metric = metric or _own_metric(model, batch)
    found = metric(model(**batch), batch)
    value, weight = found if isinstance(found, tuple) else (found, _sequences(batch))
    value = torch.as_tensor(value)
    if value.numel() != 1:
        raise ManyheadsError(f"the metric returned a tensor of shape {tuple(value.shape)}; expected one number")
    if not math.isfinite(value.item()) or not weight > 0:
        raise ManyheadsError(
            f"the metric is {value.item()} over {weight} things; expected a finite number over at least 1"
        )
    return value.reshape(()), float(weight)


def _sequences(batch: Batch) -> int:
    return next((len(value) for value in batch.values() if isinstance(value, Tensor) and value.dim()), 1)
