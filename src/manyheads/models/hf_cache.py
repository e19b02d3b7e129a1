"""A cache of transformers whose layers append in place. Imports transformers."""

from __future__ import annotations

from typing import Any

import torch
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DYNAMIC_LAYER_TYPE_MAPPING, get_layer_types_and_kwargs

from manyheads.errors import BackendError
from manyheads.models.door import NAME
from manyheads.models.hf_layers import LAYERS
from manyheads.models.latent_seam import open_seams, seams

__all__ = ["STORED", "InPlaceCache", "make_cache"]

STORED: dict[str, torch.dtype | None] = {
    "model": None, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "int8": torch.int8,
}  # fmt: skip


class InPlaceCache(DynamicCache):
    """DynamicCache with our layers wherever there are any; `stored`: what they keep keys and values in."""

    def __init__(self, config: Any, *, stored: str = "model") -> None:
        super().__init__()
        self.stored = stored
        types, keywords = get_layer_types_and_kwargs(config.get_text_config(decoder=True))
        self.layers = [_layer(kind, own, stored) for kind, own in zip(types, keywords, strict=True)]
        self.layer_class_to_replicate = None


def _layer(kind: str, keywords: dict[str, Any], stored: str) -> Any:
    if kind in LAYERS:
        return LAYERS[kind](**keywords, stored=STORED[stored])
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
    if config._attn_implementation == NAME and seams(model):
        open_seams(model)
    made = InPlaceCache(config, stored=dtype)
    if config.is_encoder_decoder:
        return EncoderDecoderCache(made, InPlaceCache(config, stored=dtype))
    return made
