"""The second cache answer: what named engines, in named versions, really hold of a cache; beside the ideal.

The ideal answer (`cost.model.cache_bytes`) is what any engine must keep; this is what each does keep, its rule in a
sentence and where the rule comes from: measured here, or modelled from source. Source: facts, section 5, last row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from manyheads.cost.dtypes import KVDType
from manyheads.cost.dtypes import kv_dtype as formats
from manyheads.cost.engine_llama_cpp import llama_cpp_held
from manyheads.cost.engine_transformers import dynamic_held, expanded_held, static_held
from manyheads.cost.engine_vllm import full_pages_held, paged_held
from manyheads.record import record
from manyheads.spec import check
from manyheads.spec.stack import StackSpec

__all__ = ["ENGINES", "EngineAnswer", "engine_answers"]


@record
class EngineAnswer:
    """What one engine holds of a cache."""

    engine: str
    version: str
    bytes: int
    """of all sequences; 0 where the question does not apply"""
    details: dict[str, int] = field(hash=False)
    """exact integers that `bytes` is made of or that belong beside it"""
    rule: str
    """how it keeps a cache, in one sentence"""
    provenance: str
    """measured, or modelled from source, with what was run or read"""
    applies: bool = True
    reason: str = ""
    """why it does not apply"""


_Held = Callable[..., "dict[str, int] | str"]

_MEASURED = "measured on tiny random models of every scheme and on SmolLM2-135M, see docs/held-bytes.md"

# name, version, model of what is held, rule, provenance
ENGINES: tuple[tuple[str, str, _Held, str, str], ...] = (
    (
        "transformers DynamicCache",
        "5.24.0",
        dynamic_held,
        (
            "Full layers keep every token, windowed and chunked ones the last W-1, as a view that after prefill still "
            "holds the whole prompt's storage (the bytes given); MLA keeps latent and rotary key, linear layers a float32 "
            "state and the last inputs of their convolution, cross-attention the encoder's tokens, borrowers nothing."
        ),
        _MEASURED,
    ),
    (
        "transformers StaticCache",
        "5.24.0",
        static_held,
        (
            "Every layer is allocated at once for max_cache_len tokens (here the context), windowed and chunked ones for "
            "min(W, max_cache_len); states as in DynamicCache."
        ),
        _MEASURED,
    ),
    (
        "transformers DynamicCache, MLA expanded",
        "4.57.6",
        expanded_held,
        (
            "Older ports expanded MLA before they cached it: keys and values of every query head, H(n+r+v) elements a "
            "token and layer."
        ),
        "modelled from source: models/deepseek_v2 and deepseek_v3/modeling_*.py, forward, of transformers 4.57.6",
    ),
    (
        "vLLM",
        "0.33.0",
        paged_held,
        (
            "Blocks of 16 tokens; windowed layers give back the blocks that fell out of the window; in a hybrid all pages "
            "are made equal (the smaller hold more tokens or are padded, a block beside linear layers grows until it fits "
            "their state) and layers are dealt into groups of equal count, padded to it; chunked layers are kept whole."
        ),
        (
            "modelled from source: v1/core/kv_cache_planning.py, v1/kv_cache_interface.py, "
            "v1/core/single_type_kv_cache_manager.py and platforms/interface.py of vLLM 0.33.0, default options; its own "
            "planner, run, made the same groups and blocks"
        ),
    ),
    (
        "vLLM without its hybrid cache manager",
        "0.33.0",
        full_pages_held,
        (
            "With --disable-hybrid-kv-cache-manager every windowed layer of a hybrid is allocated as if it were full; vLLM "
            "chooses this itself for chunked layers, on CPUs and for some KV connectors."
        ),
        (
            "modelled from source: unify_hybrid_kv_cache_specs in v1/core/kv_cache_planning.py of vLLM 0.33.0; its own "
            "planner, run, made the same groups and blocks"
        ),
    ),
    (
        "llama.cpp",
        "0c1e57098",
        llama_cpp_held,
        (
            "Cells for the whole context are allocated at once, padded to 256 a sequence; windowed layers of a hybrid get "
            "min(context, W+512) cells, padded to 256, while models windowed in every layer (Mistral, Phi-3) are kept "
            "whole; MLA keeps one row of latent and rotary key, linear layers a float32 state; block formats such as q8_0 "
            "pack rows."
        ),
        (
            "modelled from source: llama-kv-cache.cpp, llama-kv-cache-iswa.cpp, llama-memory-recurrent.cpp and "
            "llama-context.cpp of llama.cpp 0c1e57098 (in llama-cpp-python 0.3.36), command-line defaults; a build of it "
            "reported the same sizes, see docs/held-bytes.md"
        ),
    ),
)


def engine_answers(
    stack: StackSpec, *, context: int, batch: int = 1, kv_dtype: str = "bf16", source_tokens: int = 0
) -> tuple[EngineAnswer, ...]:
    """What each engine of ENGINES holds of `stack`'s cache after `context` tokens of each of `batch` sequences.

    `kv_dtype`: format that keys, values and latents are kept in, or two as in "q8_0/f16"; `source_tokens`: what the encoder read. SpecError
    where a number is out of range or the format unknown; an engine that would not hold this says so in `reason`.
    """
    check.size("context", context)
    check.size("batch", batch)
    check.size("source_tokens", source_tokens, least=0)
    kept = formats(kv_dtype)
    return tuple(_answer(row, stack, context, batch, kept, source_tokens) for row in ENGINES)


def _answer(
    row: tuple[str, str, _Held, str, str], stack: StackSpec, context: int, batch: int, kept: KVDType, source_tokens: int
) -> EngineAnswer:
    name, version, held, rule, provenance = row
    found = held(stack, context=context, batch=batch, kept=kept, source_tokens=source_tokens)
    if isinstance(found, str):
        return EngineAnswer(name, version, 0, {}, rule, provenance, applies=False, reason=found)
    details = dict(found)
    return EngineAnswer(name, version, details.pop("bytes"), details, rule, provenance)
