"""The kernels in any model of transformers, and caches that they like to read.

    manyheads.enable()                                             attn_implementation="manyheads" is a name from now on
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="manyheads")
    manyheads.enable(cache=True)                                   and every dynamic cache appends in place
    model.generate(**batch, cache=manyheads.cache(model, dtype="int8"))
    manyheads.disable()                                            all as it was

torch and transformers are imported when a function is called.
"""

from __future__ import annotations

from typing import Any

from manyheads.cost.dtypes import CACHE_DTYPES, dtype_among

__all__ = ["cache", "disable", "enable"]

# transformers' own layers by name, while ours stand in their place.
_replaced: dict[str, Any] = {}


def enable(*, cache: bool = False) -> None:
    """Make "manyheads" a name that `attn_implementation` and `set_attn_implementation` know; often is as good as once.

    Attention then runs in the decode kernels where they are the quickest, in torch's function where that computes the
    same, and in tiles elsewhere; under torch.compile too, where one graph serves every length. MLA models are patched at the first call, so that they absorb (`models.door.absorbed_mla`). `cache`: also make
    the layers of transformers' dynamic caches ours, in the model's dtype; caches that exist stay as they are.

    Raises BackendError where another function has the name.
    """
    from manyheads.models.door import door

    door.register_once()
    if _patch not in door.before_call:
        door.before_call.append(_patch)
    if cache and not _replaced:
        from transformers import cache_utils

        from manyheads.models.caches.hybrid import LAYERS

        mapping = cache_utils.DYNAMIC_LAYER_TYPE_MAPPING
        _replaced.update({name: mapping[name] for name in LAYERS if name in mapping})
        mapping.update({name: LAYERS[name] for name in _replaced})


def disable() -> None:
    """Undo `enable`: the names, the cache layers, the MLA patches. Raises BackendError while a door is open."""
    from manyheads.models.door import door
    from manyheads.models.door.absorbed_mla import unpatch

    door.unregister()
    if _patch in door.before_call:
        door.before_call.remove(_patch)
    unpatch()
    if _replaced:
        from transformers import cache_utils

        cache_utils.DYNAMIC_LAYER_TYPE_MAPPING.update(_replaced)
        _replaced.clear()


def cache(model: Any, *, dtype: str = "model") -> Any:
    """An empty cache for `model`, a transformers model that generates: pass it to `generate` or `forward` as cache=.

    dtype   what keys and values are kept in: "model" as they come, "fp32", "bf16", "fp16", or "int8" with a 16-bit scale
            a token and head (an error of at most 1/254 of each head's largest element, of keys once Hadamard-rotated)

    Layers grow in place, windows keep W - 1 tokens, linear states stay transformers' own. A format that is not the model's
    is read as it is by the kernels, and dequantized for everything else. In a graph of torch.compile layers grow as transformers'
    own do, by a copy.

    Raises BackendError for models that bring a cache of their own, SpecError for another dtype.
    """
    stored = dtype_among(dtype, CACHE_DTYPES, "dtype")
    from manyheads.models.caches.make import make_cache

    return make_cache(model, stored)


def _patch(module: Any) -> None:
    """The first call of an attention that keeps latents: from the next one on it can absorb them."""
    if not hasattr(module, "kv_lora_rank") or "expand_kv" in module.__dict__:
        return
    from manyheads.models.door.absorbed_mla import patch_module
    from manyheads.ops.deferred import warn_once

    reason = patch_module(module)
    if reason:
        warn_once(
            f"manyheads: {type(module).__name__}: {reason}: each step expands the whole cache, as in transformers"
        )
