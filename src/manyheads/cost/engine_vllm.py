"""Bytes of the paged cache that vLLM gives its requests, read in the source of 0.33.0 (its sdist on PyPI).

Pages and blocks: vllm/v1/kv_cache_interface.py. Groups of equal pages: get_kv_cache_groups,
unify_kv_cache_spec_page_size, _get_kv_cache_groups_uniform_page_size and _max_memory_usage_bytes_from_groups of
vllm/v1/core/kv_cache_planning.py. Blocks that a window gives back: SlidingWindowManager of
vllm/v1/core/single_type_kv_cache_manager.py. Blocks beside linear layers: vllm/platforms/interface.py. Options are the
defaults: blocks of 16 tokens, prefix caching on, layers outermost, no speculation. What the pool reserves on the device
(gpu_memory_utilization) is a choice of the user's; this is what the requests take of it.
"""

from __future__ import annotations

from manyheads.cost.algebra import ceil_div, most
from manyheads.cost.dtypes import DType, KVDType, dtype
from manyheads.cost.engine_layers import layers_with_a_cache, refused_dtype, refused_state, window_size
from manyheads.cost.layer import cache_elements, conv_elements, state_elements
from manyheads.spec.attention import AttentionSpec, Cross
from manyheads.spec.kv import Latent, State
from manyheads.spec.masks import Band, Bidirectional, Chunk
from manyheads.spec.stack import StackSpec

__all__ = ["BLOCK_TOKENS", "full_pages_held", "paged_held"]

BLOCK_TOKENS = 16
# Beside linear layers an MLA block is a multiple of this many tokens.
MLA_BLOCK_TOKENS = 128
# With prefix caching a request holds the states of the last block boundary and of the last token.
STATES = 2
_DTYPES = ("fp32", "bf16", "fp16", "fp8")
# One group of interchangeable layers: kind, window, tokens a block, bytes a page.
_Kind = tuple[str, int, int, int]


def _state_page(spec: AttentionSpec, kv_dtype: DType) -> int:
    """Taps and state of a linear layer, in the cache's format; a state that decays by channel stays float32."""
    assert isinstance(spec.kv, State)
    state = dtype("fp32") if spec.kv.decay == "per_channel" else kv_dtype
    return int(kv_dtype.bytes(conv_elements(spec)) + state.bytes(state_elements(spec)))


def _block_tokens(specs: list[AttentionSpec], kv_dtype: DType) -> int:
    """Tokens a block: 16, or as many multiples of it as make a page of keys and values hold a linear layer's state."""
    states = [_state_page(spec, kv_dtype) for spec in specs if isinstance(spec.kv, State)]
    cached = [spec for spec in specs if not isinstance(spec.kv, State)]
    if not (states and cached):
        return BLOCK_TOKENS
    step = MLA_BLOCK_TOKENS if isinstance(cached[0].kv, Latent) else BLOCK_TOKENS
    return int(step * ceil_div(max(states), step * kv_dtype.bytes(cache_elements(cached[0]))))


def _kinds(stack: StackSpec, kv_dtype: DType, *, windows: bool) -> dict[_Kind, int]:
    """Layers by kind. Without `windows` all are kept whole beside a full one; chunked ones always (config/vllm.py)."""
    specs = [spec for spec, _ in layers_with_a_cache(stack)]
    tokens, chunked = _block_tokens(specs, kv_dtype), any(isinstance(spec.mask, Chunk) for spec in specs)
    own = [spec for spec in specs if not (isinstance(spec.kv, State) or isinstance(spec.source, Cross))]
    full = any(not window_size(spec) for spec in own)
    found: dict[_Kind, int] = {}
    for spec, times in layers_with_a_cache(stack):
        window = window_size(spec) if not full or (windows and not chunked) else 0
        if isinstance(spec.kv, State):
            kind = ("state", 0, tokens, _state_page(spec, kv_dtype))
        elif isinstance(spec.source, Cross):
            kind = ("cross", 0, tokens, tokens * kv_dtype.bytes(cache_elements(spec)))
        elif isinstance(spec.mask, Bidirectional | Band):
            continue
        else:
            name = ("chunk" if isinstance(spec.mask, Chunk) else "window") if window else "full"
            kind = (name, window, tokens, tokens * kv_dtype.bytes(cache_elements(spec)))
        found[kind] = found.get(kind, 0) + times
    return found


def _unified(kinds: dict[_Kind, int]) -> dict[_Kind, int]:
    """The same with pages of equal size: smaller ones hold more tokens where that divides, else they are padded."""
    largest = max(page for *_, page in kinds)
    equal: dict[_Kind, int] = {}
    for (name, window, tokens, page), times in kinds.items():
        grows = name != "state" and largest % page == 0
        kind = (name, window, tokens * (largest // page) if grows else tokens, largest)
        equal[kind] = equal.get(kind, 0) + times
    return equal


def _blocks(kind: _Kind, context: int, source_tokens: int) -> int:
    """Blocks that a sequence of `context` tokens holds while the last of them is computed."""
    name, window, tokens, _ = kind
    if name == "state":
        return STATES
    if name == "cross":
        return int(ceil_div(source_tokens, tokens))
    gone = {"full": 0, "window": most(context - window, 0), "chunk": context - 1 - (context - 1) % (window or 1)}[name]
    return int(ceil_div(context, tokens) - gone // tokens)


def _group_layers(kinds: dict[_Kind, int]) -> int:
    """Layers a group: the rarest kind's, or the commonest's where that is less than one and a half times as many."""
    fewest, commonest = min(kinds.values()), max(kinds.values())
    return commonest if 2 * commonest < 3 * fewest else fewest


def _held(
    stack: StackSpec, context: int, batch: int, kept: KVDType, source_tokens: int, *, windows: bool
) -> dict[str, int] | str:
    if stack.decoder is None:
        return "an encoder keeps no cache"
    refusal = refused_dtype(kept, _DTYPES, "vLLM") or refused_state(stack, "vLLM")
    if refusal is not None:
        return refusal
    kinds = _kinds(stack, kept.keys, windows=windows)
    if not kinds:
        return "no layer keeps a cache"
    if len({(name, window) for name, window, *_ in kinds}) == 1:
        # One kind of layer, whatever its sizes: one group, whose block is a page of every layer.
        kind = next(iter(kinds))
        block_bytes = sum(page * times for (*_, page), times in kinds.items())
        blocks, groups = _blocks(kind, context, source_tokens), 1
    else:
        kinds = _unified(kinds)
        layers = _group_layers(kinds)
        counts = {kind: int(ceil_div(times, layers)) for kind, times in kinds.items()}
        block_bytes, groups = layers * next(iter(kinds))[3], sum(counts.values())
        blocks = sum(count * _blocks(kind, context, source_tokens) for kind, count in counts.items())
    return {
        "bytes": batch * blocks * block_bytes,
        "blocks_per_sequence": blocks,
        "block_bytes": block_bytes,
        "block_tokens": min(tokens for _, _, tokens, _ in kinds),
        "groups": groups,
    }


def paged_held(
    stack: StackSpec, *, context: int, batch: int, kept: KVDType, source_tokens: int
) -> dict[str, int] | str:
    """What `batch` requests of `context` tokens hold in vLLM's blocks, windows given back; or why they would not."""
    return _held(stack, context, batch, kept, source_tokens, windows=True)


def full_pages_held(
    stack: StackSpec, *, context: int, batch: int, kept: KVDType, source_tokens: int
) -> dict[str, int] | str:
    """The same with --disable-hybrid-kv-cache-manager: beside a full layer, a windowed one keeps every token too."""
    specs = [spec for spec, _ in layers_with_a_cache(stack)]
    if any(isinstance(spec.kv, State) for spec in specs):
        return "linear layers need the hybrid cache manager"
    windows = sorted({window_size(spec) for spec in specs if not isinstance(spec.source, Cross)})
    if len(windows) > 2 and not windows[0]:
        return f"layers of one group must have one window, found {', '.join(map(str, windows[1:]))}"
    return _held(stack, context, batch, kept, source_tokens, windows=False)
