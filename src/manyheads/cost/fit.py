"""Does it fit in so much memory, and if not, which one change would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from manyheads.cost.capacity import largest_batch, longest_context, needed_bytes
from manyheads.cost.dtypes import kv_dtype
from manyheads.cost.parallel import rank_of
from manyheads.cost.workload import Workload
from manyheads.errors import SpecError
from manyheads.record import record
from manyheads.spec.stack import StackSpec

__all__ = ["Fit", "fit"]


@record
class Fit:
    """What a budget of memory, of one rank, has room for."""

    budget_bytes: int
    needed_bytes: int
    """weights and ideal cache, of one rank"""
    fits: bool
    longest_context: int | None
    """null: any"""
    largest_batch: int | None
    """null: any"""
    change: str
    """the first single change that makes it fit, in this order: a smaller cache format, smaller weights, more ranks, a shorter
    context, fewer sequences; empty where it fits already or nothing alone helps"""
    leaves_out: str


def fit(stack: StackSpec, load: Workload, budget: int, ranks: int = 1) -> Fit:
    """What `budget` bytes a rank hold: whether weights and ideal cache fit, the largest context and batch, and a remedy."""
    rank, rank_load = rank_of(stack, ranks), load if ranks == 1 else replace(load, weight_bytes=0)
    needed = needed_bytes(rank, rank_load)
    return Fit(
        budget, needed, needed <= budget, longest_context(rank, rank_load, budget), largest_batch(rank, rank_load, budget),
        "" if needed <= budget else _change(stack, load, budget, ranks),
        leaves_out="the runtime's workspace, activations and fragmentation",
    )  # fmt: skip


def _change(stack: StackSpec, load: Workload, budget: int, ranks: int) -> str:
    for text, model, changed in _remedies(stack, load, ranks):
        if needed_bytes(model, changed) <= budget:
            return f"{text}: {needed_bytes(model, changed):,} B"
    rank, rank_load = rank_of(stack, ranks), load if ranks == 1 else replace(load, weight_bytes=0)
    tokens = longest_context(rank, rank_load, budget)
    if tokens:
        return f"context_tokens={tokens}: {needed_bytes(rank, replace(rank_load, context=tokens)):,} B"
    return ""


def _remedies(stack: StackSpec, load: Workload, ranks: int) -> Iterator[tuple[str, StackSpec, Workload]]:
    rank = rank_of(stack, ranks)
    for name in ("fp8", "q4_0"):
        if load.kv.bytes(256, 256) > kv_dtype(name).bytes(256, 256):
            yield (
                f'kv_dtype="{name}"',
                rank,
                replace(load, kv_dtype=name, weight_bytes=0 if ranks > 1 else load.weight_bytes),
            )
    for name in ("int8", "int4"):
        if load.weight.bytes(256) > replace(load, weight_dtype=name).weight.bytes(256):
            yield f'weight_dtype="{name}"', rank, replace(load, weight_dtype=name, weight_bytes=0)
    for more in (2, 4, 8, 16):
        if more > ranks:
            try:
                yield f"tensor_parallel={more}", rank_of(stack, more), replace(load, weight_bytes=0)
            except SpecError:  # these heads do not divide so
                continue
    for fewer in (load.batch // 2, load.batch // 4, 1):
        if 0 < fewer < load.batch:
            yield f"batch={fewer}", rank, replace(load, batch=fewer)
