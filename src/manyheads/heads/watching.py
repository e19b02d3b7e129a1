"""Short texts through a model, all heads watched at once: what a detector needs of each, and never a matrix kept.

Roles are judged on many short windows, because the spread between them says how sure a score is; the matrices of one layer
and a few windows are small and gone before the next layer. Long contexts are the business of `heads.statistics`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import BackendError, ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.batches import places
from manyheads.models.door.door import Call, opened
from manyheads.ops import masks

__all__ = ["Batch", "Look", "longest_text", "watch"]


@dataclass(frozen=True)
class Batch:
    """Sequences of equal length. `ids` (b, t) go in; `targets`: the decoder's tokens, of encoder-decoder models.

    `context`: what the detector that reads this batch knows of it.
    """

    ids: Tensor
    targets: Tensor | None = None
    context: Any = None


@dataclass(frozen=True)
class Look:
    """What is seen of one attention call: `weights` (b, h, t, s) in float32, `visible` the same shape or (b or 1, 1, t, s),
    the `stage` ("" where the model has one stack), and the tokens `query_ids` (b, t) and `key_ids` (b, s)."""

    weights: Tensor
    visible: Tensor
    stage: str
    query_ids: Tensor
    key_ids: Tensor

    @property
    def two_sided(self) -> bool:
        """Whether some query sees keys that come after it."""
        return bool(self.visible.triu(1).any())


def longest_text(model: Any, most: int) -> int:
    """The tokens that a sequence may have: `most`, or fewer where the model's positions end before."""
    config = getattr(model, "config", None)
    known = getattr(config, "max_position_embeddings", None) or getattr(config, "n_positions", None)
    if not isinstance(known, int) or known <= 0:
        return most
    # RoBERTa's positions begin after its padding token.
    kind = getattr(config, "model_type", "")
    lost = (getattr(config, "pad_token_id", None) or 0) + 1 if "roberta" in kind or kind == "camembert" else 0
    return min(most, known - lost)


def watch(
    model: Any,
    batches: Iterable[Batch],
    measure: Callable[[Look, Batch], Tensor | None],
    *,
    encoder_only: bool = False,
) -> tuple[tuple[Head, ...], np.ndarray]:
    """Every head of `model` on `batches`, and what `measure` made of it: (heads, array (units, heads, ...)).

    `measure(look, batch)` returns (units, h, ...), or None where the call is not to be looked at. `encoder_only` runs the
    encoder of an encoder-decoder model alone. The model is in evaluation mode meanwhile, without its output layer.
    """
    both = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    found: dict[str, list[Tensor]] = {}
    seen: list[Batch] = []

    def observe(call: Call, _: Tensor) -> None:
        batch = seen[-1]
        measured = measure(_look(call, batch, modules[call.path].stage), batch)
        if measured is not None:
            found.setdefault(call.path, []).append(measured.to("cpu", torch.float32))

    with torch.no_grad(), opened(model, observers=[observe], mode="eval") as door:
        modules = {place.path: place for place in places(door.attentions)}
        for batch in batches:
            seen[:] = [batch]
            _forward(model, batch, both=both, encoder_only=encoder_only)
    if not found:
        raise BackendError(f"{type(model).__name__}: none of its {len(door.calls)} attention modules was called")
    heads: list[Head] = []
    arrays: list[np.ndarray] = []
    for path, parts in found.items():
        whole, place = torch.cat(parts).numpy(), modules[path]
        numbers = place.numbers(whole.shape[1])
        heads += [Head(place.layer, number, place.stage) for number in numbers if number >= 0]
        arrays.append(whole[:, [number >= 0 for number in numbers]])
    return tuple(heads), np.concatenate(arrays, axis=1)


def _look(call: Call, batch: Batch, stage: str) -> Look:
    weights = call.weights().float()
    b, h, t, s = weights.shape
    query_ids = batch.ids if stage in ("", "encoder") or batch.targets is None else batch.targets
    key_ids = query_ids if stage != "cross" else batch.ids
    if query_ids.shape != (b, t) or key_ids.shape != (b, s):
        raise BackendError(
            f"{call.path}: attention of {t} queries over {s} keys in {b} sequences, where the tokens are "
            f"{tuple(query_ids.shape)} over {tuple(key_ids.shape)}: heads cannot be read against tokens"
        )
    visible = call.visible
    if visible is None:
        visible = weights.new_ones((1, 1, t, s), dtype=torch.bool)
    elif not isinstance(visible, Tensor):
        visible = masks.materialise(visible, batch=b, heads=h, queries=t, keys=s, device=weights.device)
    return Look(weights, visible.expand(visible.shape[0], visible.shape[1], t, s), stage, query_ids, key_ids)


def _forward(model: Any, batch: Batch, *, both: bool, encoder_only: bool) -> None:
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise ManyheadsError(
            f"{type(model).__name__} takes {model.main_input_name}; roles are read from text, from models that take input_ids"
        )
    device = next(model.parameters()).device
    ids = batch.ids.to(device)
    if both and encoder_only:
        model.get_encoder()(input_ids=ids)
        return
    body = model.base_model if hasattr(model, "base_model") else model
    if both:
        targets = ids if batch.targets is None else batch.targets.to(device)
        body(input_ids=ids, decoder_input_ids=targets, use_cache=False)
        return
    takes_cache = "use_cache" in inspect.signature(body.forward).parameters
    body(input_ids=ids, **({"use_cache": False} if takes_cache else {}))
