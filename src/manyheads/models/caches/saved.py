"""A filled cache of a transformers model as a file, in the format of `layer.caches.saved`.

save_cache(cache, "prompt.safetensors", model)
cache = load_cache("prompt.safetensors", model)
model.generate(prompt_and_more, cache=cache)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import nn

from manyheads.errors import BackendError, CheckpointError
from manyheads.layer.caches import saved
from manyheads.layer.caches.saved import Entry
from manyheads.quoting import shown_path

__all__ = ["fingerprint", "load_cache", "save_cache"]

# Of a configuration: where it lies, how it is run and what it is called do not change what is cached.
_VOLATILE = frozenset({
    "_name_or_path", "architectures", "attn_implementation", "dtype", "output_attentions", "output_hidden_states",
    "return_dict", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's configuration and of the beginnings of its first tensors."""
    config: Any = model.config  # type: ignore[union-attr]
    return saved.fingerprint(_without(config.to_dict()), model.state_dict().items())


def _without(told: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without(value) if isinstance(value, dict) else value
        for key, value in told.items()
        if key not in _VOLATILE
    }


def save_cache(cache: Any, path: str | os.PathLike[str], model: nn.Module) -> None:
    """Write `cache`, filled by `model`, to `path`, whole or not at all.

    Raises BackendError for caches whose layers are not ours (`manyheads.cache` makes one that are, `enable(cache=True)` makes
    every new one) or are empty, and ManyheadsError where the file cannot be written.
    """
    from manyheads.models.caches.hybrid import STOCK

    entries = []
    for part, number, layer in _layers(cache):
        kind = type(layer).__name__
        if kind not in STOCK and not hasattr(layer, "saved"):
            raise BackendError(
                f"layer {number} of the cache is a {kind}, which is not ours; valid: what "
                "manyheads.cache(model) returns, or a cache made after manyheads.enable(cache=True)"
            )
        told, tensors = STOCK[kind][0](layer) if kind in STOCK else layer.saved()
        entries.append(Entry(part, kind, told, tensors))
    stored = getattr(getattr(cache, "self_attention_cache", cache), "stored", "model")
    saved.write_entries(path, entries, model=fingerprint(model), model_dtype=_dtype(model), stored=stored)


def load_cache(path: str | os.PathLike[str], model: nn.Module) -> Any:
    """The cache that was saved at `path`, for the same `model` in the same dtype; its tensors are mapped, not read.

    Raises CheckpointError for a file that is no such cache or is damaged, and for another model or dtype.
    """
    entries, metadata = saved.read_entries(
        path, model=fingerprint(model), model_dtype=_dtype(model), of=f"this {type(model).__name__}"
    )
    from manyheads.models.caches.hybrid import STOCK
    from manyheads.models.enable import cache as made

    cache = made(model, dtype=metadata.get("stored", "model"))
    layers = [layer for _, _, layer in _layers(cache)]
    if [each.kind for each in entries] != [type(layer).__name__ for layer in layers]:
        raise CheckpointError(
            f"{shown_path(path)}: its layers are not those that this version makes for {type(model).__name__}"
        )
    for entry, layer in zip(entries, layers, strict=True):
        kept = {name: x.to(model.device) for name, x in entry.tensors.items()}  # type: ignore[arg-type]
        if entry.kind in STOCK:
            STOCK[entry.kind][1](layer, entry.told, kept)
        else:
            layer.restore(entry.told, kept)
    if hasattr(cache, "self_attention_cache"):  # told anew, that its cross-attention is there
        return type(cache)(cache.self_attention_cache, cache.cross_attention_cache)
    return cache


def _dtype(model: nn.Module) -> str:
    return str(next(model.parameters()).dtype)


def _layers(cache: Any) -> list[tuple[str, int, Any]]:
    """(part, number, layer) of a cache, or of the two of an encoder-decoder."""
    if not hasattr(cache, "self_attention_cache"):
        return [("self", number, layer) for number, layer in enumerate(cache.layers)]
    parts = (("self", cache.self_attention_cache), ("cross", cache.cross_attention_cache))
    return [(part, number, layer) for part, each in parts for number, layer in enumerate(each.layers)]
