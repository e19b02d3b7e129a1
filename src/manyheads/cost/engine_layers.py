"""What the models of engines share: the attentions that keep something, and why an engine may not hold a layer."""

from __future__ import annotations

from collections.abc import Iterator

from manyheads.cost.dtypes import KVDType
from manyheads.spec.attention import AttentionSpec, Borrowed
from manyheads.spec.kv import State
from manyheads.spec.masks import Chunk, Window
from manyheads.spec.stack import StackSpec

__all__ = ["layers_with_a_cache", "refused_dtype", "refused_state", "window_size"]


def layers_with_a_cache(stack: StackSpec) -> Iterator[tuple[AttentionSpec, int]]:
    """The attentions of the decoder that keep keys, values, latents or states of their own, each with its count."""
    if stack.decoder is None:
        return
    for block, times in stack.decoder.groups:
        for attention in block.attentions:
            if not isinstance(attention.source, Borrowed):
                yield attention, times


def window_size(spec: AttentionSpec) -> int:
    """Keys that a windowed or chunked layer sees at most, 0 where all are seen."""
    if isinstance(spec.mask, Window):
        return spec.mask.keys
    return spec.mask.size if isinstance(spec.mask, Chunk) else 0


def refused_dtype(kept: KVDType, valid: tuple[str, ...], engine: str, *, apart: bool = False) -> str | None:
    """Why `engine` cannot keep its cache in this format, None where it can; `apart`: it can keep keys and values in two."""
    if kept.keys != kept.values and not apart:
        return f"{engine} keeps keys and values in one format, not in {kept.name}"
    if kept.keys.name in valid and kept.values.name in valid:
        return None
    return f"{engine} keeps its cache as {', '.join(valid)}, not {kept.name}"


def refused_state(stack: StackSpec, engine: str) -> str | None:
    """Why `engine` cannot hold a linear layer of `stack`, None where it can: only gated delta rules were looked at."""
    for spec, _ in layers_with_a_cache(stack):
        if isinstance(spec.kv, State) and (spec.kv.rule != "gated_delta" or spec.kv.normalised):
            kind = ("normalised " if spec.kv.normalised else "") + spec.kv.rule
            return (
                f"linear layers are modelled in {engine} for gated delta rules (Qwen3-Next, Kimi); this one is {kind}"
            )
    return None
