"""The attention weights of every head on short texts, handed to a detector call by call and kept nowhere.

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
from manyheads.heads.attention_modules import ModuleIndex
from manyheads.heads.batches import Batch
from manyheads.models.door.door import Call, open_door
from manyheads.ops import masks

__all__ = ["AttentionWeights", "measure_heads"]


@dataclass(frozen=True)
class AttentionWeights:
    """One attention call: `weights` (b, h, t, s) in float32, `visible` the same shape or (b or 1, 1, t, s), the `stack` of its
    module, and the tokens `query_ids` (b, t) and `key_ids` (b, s)."""

    weights: Tensor
    visible: Tensor
    stack: str
    query_ids: Tensor
    key_ids: Tensor

    @property
    def two_sided(self) -> bool:
        """Whether some query sees keys that come after it."""
        return bool(self.visible.triu(1).any())


def measure_heads(
    model: Any,
    batches: Iterable[Batch],
    measure: Callable[[AttentionWeights, int], Tensor | None],
    *,
    encoder_only: bool = False,
) -> tuple[tuple[Head, ...], np.ndarray]:
    """What `measure` makes of every head of `model` on `batches`: (heads, array (units, heads, ...)).

    batches  input_ids (b, t), sequences of equal length, and decoder_input_ids where a decoder is to read something else
    measure  called with the weights of a call and the number of its batch; returns (units, h, ...), or None where the call is
             not to be looked at
    encoder_only   run the encoder of an encoder-decoder model alone

    The model is in evaluation mode meanwhile, without its output layer.
    """
    found: dict[str, list[Tensor]] = {}
    batch: Batch = {}
    number = -1

    def observe(call: Call, _: Tensor) -> None:
        measured = measure(_attention_weights(call, batch, modules.of(call).stack), number)
        if measured is not None:
            found.setdefault(call.path, []).append(measured.to("cpu", torch.float32))

    with torch.no_grad(), open_door(model, observers=[observe], mode="eval") as door:
        modules = ModuleIndex(door.attentions)
        for number, batch in enumerate(batches):  # noqa: B007  the observer reads them
            _forward(model, batch, encoder_only=encoder_only)
    if not found:
        raise BackendError(f"{type(model).__name__}: none of its {len(door.calls)} attention modules was called")
    heads: list[Head] = []
    arrays: list[np.ndarray] = []
    called = {module.path: module for module in modules.seen}
    for path, parts in found.items():
        module = called[path]
        heads += [module.head(number) for number in module.computed if number >= 0]
        arrays.append(torch.cat(parts).numpy()[:, [number >= 0 for number in module.computed]])
    return tuple(heads), np.concatenate(arrays, axis=1)


def _attention_weights(call: Call, batch: Batch, stack: str) -> AttentionWeights:
    weights = call.weights().float()
    b, h, t, s = weights.shape
    ids: Tensor = batch["input_ids"]
    query_ids = ids if stack in ("", "encoder") else batch.get("decoder_input_ids", ids)
    key_ids = query_ids if stack != "cross" else ids
    if query_ids.shape != (b, t) or key_ids.shape != (b, s):
        raise BackendError(
            f"{call.path}: attention of {t} queries over {s} keys in {b} sequences, where the tokens are "
            f"{tuple(query_ids.shape)} over {tuple(key_ids.shape)}: heads cannot be read against tokens"
        )
    visible = call.mask
    if visible is None:
        visible = weights.new_ones((1, 1, t, s), dtype=torch.bool)
    elif not isinstance(visible, Tensor):
        visible = masks.materialise(visible, batch=b, heads=h, queries=t, keys=s, device=weights.device)
    return AttentionWeights(
        weights, visible.expand(visible.shape[0], visible.shape[1], t, s), stack, query_ids, key_ids
    )


def _forward(model: Any, batch: Batch, *, encoder_only: bool) -> None:
    if getattr(model, "main_input_name", "input_ids") != "input_ids":
        raise ManyheadsError(
            f"{type(model).__name__} takes {model.main_input_name}; roles are read from text, from models that take input_ids"
        )
    device = next(model.parameters()).device
    given = {name: ids.to(device) for name, ids in batch.items()}
    both = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))
    if both and encoder_only:
        model.get_encoder()(input_ids=given["input_ids"])
        return
    body = model.base_model if hasattr(model, "base_model") else model
    if both:
        given.setdefault("decoder_input_ids", given["input_ids"])
    else:
        given.pop("decoder_input_ids", None)
    takes_cache = "use_cache" in inspect.signature(body.forward).parameters
    body(**given, **({"use_cache": False} if both or takes_cache else {}))
