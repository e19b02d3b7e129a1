"""Bytes of the cache that llama.cpp allocates, read in its source at 0c1e57098 (vendored by llama-cpp-python 0.3.36).

`llama_kv_cache` (src/llama-kv-cache.cpp) makes one tensor of cells x row for keys and one for values a layer, none for
the values of MLA; `llama_kv_cache_iswa` (src/llama-kv-cache-iswa.cpp) sizes windowed layers; llama-context.cpp pads
cells to 256; `llama_memory_recurrent` holds states. Options are the command line's defaults: ubatch 512, no --swa-full,
one stream of cells a sequence.
"""

from __future__ import annotations

from manyheads.cost.algebra import ceil_div, least
from manyheads.cost.dtypes import KVDType, dtype
from manyheads.cost.engine_layers import layers_with_a_cache, refused_dtype, refused_state, window_size
from manyheads.cost.layer import cache_elements, cache_parts, conv_elements, state_elements
from manyheads.spec.attention import AttentionSpec, Cross
from manyheads.spec.kv import Heads, State
from manyheads.spec.masks import Band, Bidirectional
from manyheads.spec.stack import StackSpec

__all__ = ["CELLS", "UBATCH", "llama_cpp_held"]

CELLS = 256
UBATCH = 512
_DTYPES = ("fp32", "fp16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")


def _padded(cells: int) -> int:
    return int(CELLS * ceil_div(cells, CELLS))


def _row_bytes(spec: AttentionSpec, kept: KVDType) -> int:
    """Bytes of a cell of one layer: a row of keys and a row of values, or MLA's one row of latent and rotary key."""
    keys, values = cache_parts(spec)
    return int(kept.keys.bytes(keys) + kept.values.bytes(values))


def _refused_blocks(stack: StackSpec, kept: KVDType) -> str | None:
    """llama_init_from_model refuses a head whose size the format's blocks do not divide."""
    for spec, _ in layers_with_a_cache(stack):
        if isinstance(spec.source, Cross) or isinstance(spec.kv, State):
            continue
        values = spec.v_head_dim if isinstance(spec.kv, Heads) else 0
        for size, own in ((spec.head_dim if values else cache_elements(spec), kept.keys), (values, kept.values)):
            if size % own.block_elements:
                return f"{own.name} packs {own.block_elements} elements, which do not divide a head of {size}"
    return None


def llama_cpp_held(
    stack: StackSpec, *, context: int, batch: int, kept: KVDType, source_tokens: int
) -> dict[str, int] | str:
    """What a llama.cpp context of `batch` sequences of `context` tokens allocates, or why it would not."""
    if stack.decoder is None:
        return "an encoder keeps no cache"
    refusal = refused_dtype(kept, _DTYPES, "llama.cpp", apart=True) or refused_state(stack, "llama.cpp")
    refusal = refusal or _refused_blocks(stack, kept)
    if refusal is not None:
        return refusal
    # Architectures whose every layer is windowed (Mistral, Phi-3) have their window ignored: arch "llama" does not read
    # it, "phi3" switches it off.
    read = any(not (window_size(spec) or isinstance(spec.source, Cross)) for spec, _ in layers_with_a_cache(stack))
    cells, parts = _padded(context), dict.fromkeys(("full_bytes", "windowed_bytes", "state_bytes"), 0)
    for spec, times in layers_with_a_cache(stack):
        if isinstance(spec.source, Cross) or isinstance(spec.mask, Band | Bidirectional):
            continue
        if isinstance(spec.kv, State):
            parts["state_bytes"] += times * batch * dtype("fp32").bytes(conv_elements(spec) + state_elements(spec))
        elif window_size(spec) and read:
            window_cells = _padded(least(cells, window_size(spec) + UBATCH))
            parts["windowed_bytes"] += times * batch * window_cells * _row_bytes(spec, kept)
        else:
            parts["full_bytes"] += times * batch * cells * _row_bytes(spec, kept)
    parts["encoder_output_bytes"] = _encoder_output_bytes(stack, batch * source_tokens)
    return {"bytes": sum(parts.values()), "cells": cells, **parts}


def _encoder_output_bytes(stack: StackSpec, tokens: int) -> int:
    """No keys and values of a memory are cached: the encoder's output stays, in float32, projected in every step."""
    crossing = [spec for spec, _ in layers_with_a_cache(stack) if isinstance(spec.source, Cross)]
    return int(dtype("fp32").bytes(tokens * crossing[0].d_source)) if crossing else 0
