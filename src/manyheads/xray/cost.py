"""What an x-ray says of cost beside the price: the curve of its plot, the contexts it prices, the command worth typing next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from manyheads.checkpoints import Checkpoint
from manyheads.checkpoints.demo import DEMO_NAME, is_demo
from manyheads.cost.engines import engine_answers
from manyheads.cost.model import cache_bytes
from manyheads.cost.pricing import default_context, default_source_tokens
from manyheads.cost.whatif import what_if
from manyheads.cost.workload import Workload
from manyheads.errors import ManyheadsError
from manyheads.spec.stack import StackSpec
from manyheads.xray.record import CacheCurve, CurveSeries

__all__ = ["KV_DTYPE", "cache_curve", "default_contexts", "next_command"]

KV_DTYPE = "bf16"
_CONTEXTS = (1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20)


def default_contexts(stack: StackSpec) -> list[int]:
    """The context of the model and up to four below it."""
    limit = default_context(stack)
    return [*(tokens for tokens in _CONTEXTS if tokens < limit), limit][-5:]


def cache_curve(stack: StackSpec, contexts: Sequence[int]) -> CacheCurve:
    """Cache bytes of one sequence against context, ideal and in each engine that keeps one: what the plot shows."""
    if stack.decoder is None:
        return CacheCurve((), ())
    longest = max(1 << 14, *contexts, default_context(stack))
    at = [1 << power for power in range(8, longest.bit_length()) if 1 << power < longest] + [longest]
    source = [default_source_tokens(stack, tokens) for tokens in at]
    ideal = [
        int(cache_bytes(stack, Workload(tokens, source_tokens=behind, kv_dtype=KV_DTYPE)).total)
        for tokens, behind in zip(at, source, strict=True)
    ]
    series: dict[str, list[int]] = {"ideal": ideal}
    for tokens, behind in zip(at, source, strict=True):
        for answer in engine_answers(stack, context=tokens, kv_dtype=KV_DTYPE, source_tokens=behind):
            if answer.applies:
                series.setdefault(f"{answer.engine} {answer.version}", []).append(answer.bytes)
    lines = (CurveSeries(name, tuple(held)) for name, held in series.items() if len(held) == len(at))
    return CacheCurve(tuple(at), tuple(lines), kv_dtype=KV_DTYPE)


_OTHER_HEADS = {"mha": ("mqa",), "gqa": ("mha", "mqa"), "mqa": ("mha",), "mla": ("mha",), "window": ("mqa",)}


def next_command(checkpoint: Checkpoint) -> str:
    """Pricing the same model with other heads: those that its shape allows."""
    stack = checkpoint.stack
    target = DEMO_NAME if is_demo(checkpoint.source) else checkpoint.source
    words = ["manyheads", "cost", shlex.quote(target)]
    if checkpoint.revision:
        words += ["--revision", shlex.quote(checkpoint.revision)]
    if checkpoint.assume:
        words += ["--assume", shlex.quote(checkpoint.assume)]
    longest = default_context(stack)
    words += ["--context", "8k" if longest >= 1 << 13 else str(longest)]
    first = next((a for block in stack.main.blocks for a in block.attentions), None)
    for change in _OTHER_HEADS.get(first.scheme if first else "", ()) if stack.decoder else ():
        try:
            what_if(stack, change)
        except ManyheadsError:
            continue
        words += ["--what-if", change]
    return " ".join(words)
