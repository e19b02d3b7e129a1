"""Bytes that caches of Hugging Face transformers hold: DynamicCache and StaticCache of 5.24.0, MLA of 4.57.6.

Read in transformers/cache_utils.py and the modelling files, and measured on tiny random models of every scheme
(tests/cost/test_engines_measured.py, docs/held-bytes.md). Counted are keys, values, latents and states; not the few
8-byte counters that some layers keep beside them.
"""

from __future__ import annotations

from manyheads.cost import formulas
from manyheads.cost.algebra import least
from manyheads.cost.dtypes import DType, KVDType, dtype
from manyheads.cost.engine_layers import layers_with_a_cache, refused_dtype, refused_state, window_size
from manyheads.cost.layer import cache_elements, conv_channels, state_elements
from manyheads.cost.pairs import keys_held
from manyheads.spec.attention import AttentionSpec, Cross
from manyheads.spec.kv import Latent, State
from manyheads.spec.masks import Band, Bidirectional
from manyheads.spec.stack import StackSpec

__all__ = ["dynamic_held", "expanded_held", "static_held"]

# How a reason begins that no reader of a table needs.
BESIDE_THE_POINT = "of interest"
_DTYPES = ("fp64", "fp32", "bf16", "fp16")
# (keys held, keys stored) after prefill, then the same after one more step.
_Keys = tuple[int, int, int, int]


def _refusal(stack: StackSpec, kept: KVDType) -> str | None:
    if stack.decoder is None:
        return "an encoder keeps no cache"
    return refused_dtype(kept, _DTYPES, "transformers") or refused_state(stack, "transformers")


def _dynamic_keys(spec: AttentionSpec, context: int, source_tokens: int) -> _Keys:
    """Tokens of a layer of DynamicCache, as its tensors say and as their storages hold.

    `update` concatenates past and new keys and keeps a slice of the last W - 1: a view, whose storage stays whole. The
    slice of a window of 1 is [-0:], which is everything.
    """
    if isinstance(spec.source, Cross):
        return (source_tokens,) * 4
    if isinstance(spec.mask, Bidirectional | Band):
        return (0,) * 4
    past = window_size(spec) - 1
    if past <= 0:
        return context, context, context + 1, context + 1
    held = least(context, past)
    return held, context, least(held + 1, past), held + 1


def _state_bytes(spec: AttentionSpec, kv_dtype: DType) -> int:
    """A gated delta layer: the last `conv_width` inputs of its convolution, and a state that stays float32."""
    assert isinstance(spec.kv, State)
    taps = kv_dtype.bytes(spec.kv.conv_width * conv_channels(spec))
    return int(taps + dtype("fp32").bytes(state_elements(spec)))


def _part(spec: AttentionSpec) -> str:
    if isinstance(spec.source, Cross):
        return "cross_bytes"
    if isinstance(spec.kv, State):
        return "state_bytes"
    return "windowed_bytes" if window_size(spec) else "full_bytes"


def dynamic_held(
    stack: StackSpec, *, context: int, batch: int, kept: KVDType, source_tokens: int
) -> dict[str, int] | str:
    """What DynamicCache(config=...) holds, or why the question does not arise.

    `logical_*`: bytes of the tensors' shapes; `storage_*`: bytes of their storages, each counted once; after a prefill
    of `context` tokens at once, and after one more token. The other keys are the parts of `storage_prefill_bytes`, and
    `bytes` is that number.
    """
    refusal = _refusal(stack, kept)
    if refusal is not None:
        return refusal
    kv_dtype = kept.keys
    sums = [0, 0, 0, 0]
    parts = dict.fromkeys(("full_bytes", "windowed_bytes", "cross_bytes", "state_bytes"), 0)
    for spec, times in layers_with_a_cache(stack):
        if isinstance(spec.kv, State):
            each = [_state_bytes(spec, kv_dtype)] * 4
        else:
            each = [kv_dtype.bytes(n * cache_elements(spec)) for n in _dynamic_keys(spec, context, source_tokens)]
        sums = [total + times * batch * own for total, own in zip(sums, each, strict=True)]
        parts[_part(spec)] += times * batch * each[1]
    names = ("logical_prefill_bytes", "storage_prefill_bytes", "logical_step_bytes", "storage_step_bytes")
    return {"bytes": sums[1], **dict(zip(names, sums, strict=True)), **parts}


def static_held(
    stack: StackSpec, *, context: int, batch: int, kept: KVDType, source_tokens: int
) -> dict[str, int] | str:
    """What StaticCache(config, max_cache_len=context) holds from its first update on: windows of min(W, context)."""
    refusal = _refusal(stack, kept)
    if refusal is not None:
        return refusal
    kv_dtype = kept.keys
    parts = dict.fromkeys(("full_bytes", "windowed_bytes", "cross_bytes", "state_bytes"), 0)
    for spec, times in layers_with_a_cache(stack):
        if isinstance(spec.kv, State):
            each = _state_bytes(spec, kv_dtype)
        elif isinstance(spec.source, Cross):
            each = kv_dtype.bytes(source_tokens * cache_elements(spec))
        else:
            each = kv_dtype.bytes(keys_held(spec.mask, context) * cache_elements(spec))
        parts[_part(spec)] += times * batch * each
    return {"bytes": sum(parts.values()), **parts}


def expanded_held(
    stack: StackSpec, *, context: int, batch: int, kept: KVDType, source_tokens: int
) -> dict[str, int] | str:
    """What DynamicCache held of an MLA model in transformers 4.57.6: keys and values of every head, H·(n + r + v)."""
    specs = list(layers_with_a_cache(stack))
    if any(not isinstance(spec.kv, Latent) for spec, _ in specs) or source_tokens:
        return f"{BESIDE_THE_POINT} for MLA models only: other layers are held as in 5.24.0"
    refusal = _refusal(stack, kept)
    if refusal is not None:
        return refusal
    kv_dtype = kept.keys
    elements = 0
    for spec, times in specs:
        assert isinstance(spec.kv, Latent)
        elements += times * formulas.heads_cache_elements(spec.num_heads, spec.kv.head_dim, spec.kv.v_head_dim)
    each = kv_dtype.bytes(elements)
    return {"bytes": batch * context * each, "bytes_per_token": each, "elements_per_token": elements}
