"""A cache of transformers whose layers append in place. Imports transformers."""

from __future__ import annotations

from typing import Any

from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, LinearAttentionLayer, get_layer_types_and_kwargs

from manyheads.errors import BackendError
from manyheads.models.caches.hybrid import LAYERS, check_linear_crop
from manyheads.models.caches.layers import FullLayer
from manyheads.models.door.absorbed_mla import patch, patchable
from manyheads.models.door.door import NAME
from manyheads.ops.dtypes import torch_dtype

__all__ = ["InPlaceCache", "make_cache"]


class InPlaceCache(DynamicCache):
    """DynamicCache with our layers wherever there are any; `stored`: what they keep keys and values in."""

    def __init__(self, config: Any, *, stored: str = "model", **offloading: bool) -> None:
        super().__init__(**offloading)
        self.stored = stored
        types, keywords = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
        self.layers = self._layers(types, keywords)
        self.layer_class_to_replicate = None

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -tokens_to_remove tokens, in all layers or, where one of them cannot, in none."""
        for layer in self.layers:
            if isinstance(layer, FullLayer):
                layer.check_crop(tokens_to_remove)
            elif isinstance(layer, LinearAttentionLayer):
                check_linear_crop(layer, tokens_to_remove)
        super().crop(tokens_to_remove)

    def _layers(self, types: list[str], keywords: list[dict[str, Any]]) -> list[Any]:
        return [_layer(kind, own, self.stored) for kind, own in zip(types, keywords, strict=True)]


class CrossCache(InPlaceCache):
    """Keys and values of an encoder: all of them, for every layer of the decoder, whatever that keeps of its own tokens."""

    def _layers(self, types: list[str], keywords: list[dict[str, Any]]) -> list[Any]:  # noqa: ARG002
        return [_layer("full_attention", {}, self.stored) for _ in types]


class InPlaceCaches(EncoderDecoderCache):
    """A decoder's own cache and that of its encoder.

    The `generate` of T5Gemma puts another cross-attention cache of the same class in the place of an empty one, and tells
    it nothing but a configuration: the one that is given is kept, so that it keeps its format.
    """

    _cross: CrossCache | None = None

    @property
    def cross_attention_cache(self) -> Any:
        """The encoder's keys and values."""
        return self._cross

    @cross_attention_cache.setter
    def cross_attention_cache(self, cache: Any) -> None:
        empty = type(cache) is CrossCache and not any(layer.get_seq_length() for layer in cache.layers)
        if self._cross is None or not empty:
            self._cross = cache


def _layer(kind: str, keywords: dict[str, Any], stored: str) -> Any:
    if kind in LAYERS:
        return LAYERS[kind](**keywords, stored=None if stored == "model" else torch_dtype(stored))
    return DYNAMIC_LAYER_TYPE_MAPPING[kind](**keywords)


def make_cache(model: Any, dtype: str) -> Any:
    """What `manyheads.cache` returns; see there."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise BackendError(f"a cache is made for a model of transformers, found {type(model).__name__}")
    supported = getattr(model, "_supports_default_dynamic_cache", None)
    if supported is None or not supported():
        raise BackendError(
            f"{type(model).__name__} brings a cache of its own or keeps none; valid: models that generate from transformers' "
            "DynamicCache, as llama, gemma and deepseek_v3 do"
        )
    if config._attn_implementation == NAME and patchable(model):
        patch(model)
    made = InPlaceCache(config, stored=dtype)
    if config.is_encoder_decoder:
        return InPlaceCaches(made, CrossCache(config, stored=dtype))
    return made
