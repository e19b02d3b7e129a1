"""Decode and prefill: every shape that was asked for, each held against its own reference and roofline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from manyheads.bench.contest import Contest, Pace, run_contest
from manyheads.bench.contestants import decode_paths, prefill_paths
from manyheads.bench.paths import Path
from manyheads.bench.probes import probes
from manyheads.bench.reference_check import BOUNDS, reference
from manyheads.bench.room import MOST_BYTES, MOST_COPIED_BYTES, Room
from manyheads.bench.rotation import Buffer, Rotation
from manyheads.bench.shape import Shape
from manyheads.errors import ManyheadsError
from manyheads.report.units import gib

__all__ = ["Plan", "Say", "decode", "prefill", "shapes"]

Say = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """How to measure, whatever is measured."""

    room: Room
    threads: int
    pace: Pace = field(default_factory=Pace)
    seed: int = 0
    say: Say = lambda _: None


def shapes(
    heads: Sequence[tuple[int, int, int, int]], contexts: Sequence[int], dtypes: Sequence[str]
) -> tuple[Shape, ...]:
    """One new token over every context, for each (query heads, KV heads, head size, value head size), type by type."""
    return tuple(Shape(*sizes, keys, dtype) for dtype in dtypes for sizes in heads for keys in contexts)


def decode(wanted: Sequence[Shape], plan: Plan, *, paths: Sequence[Path] | None = None) -> tuple[Contest, ...]:
    """A contest for each shape. The buffer of one storage type serves all its shapes and is gone before the next."""
    paths = decode_paths(plan.threads) if paths is None else paths
    return _contests(wanted, paths, plan)


def prefill(wanted: Sequence[Shape], plan: Plan, *, paths: Sequence[Path] | None = None) -> tuple[Contest, ...]:
    """The same with as many new tokens as keys, where arithmetic is all."""
    paths = prefill_paths(plan.threads) if paths is None else paths
    prompts = [replace(shape, queries=shape.keys) for shape in wanted]
    return _contests(prompts, paths, replace(plan, pace=replace(plan.pace, rounds=min(plan.pace.rounds, 5))))


def _contests(wanted: Sequence[Shape], paths: Sequence[Path], plan: Plan) -> tuple[Contest, ...]:
    for shape in wanted:
        _check_fits(shape, plan)
    torch.set_num_threads(plan.threads)
    done: list[Contest] = []
    for dtype in dict.fromkeys(shape.dtype for shape in wanted):
        own = [shape for shape in wanted if shape.dtype == dtype]
        size = max(Rotation.bytes_for(shape, plan.room.rotation_bytes) for shape in own)
        buffer = Buffer(dtype, size, seed=plan.seed)
        for shape in own:
            plan.say(f"{dtype}, {shape.kv_heads} KV heads, {shape.keys:,} tokens")
            done.append(_contest(shape, buffer, paths, plan))
        del buffer
    return tuple(done)


def _check_fits(shape: Shape, plan: Plan) -> None:
    needed = Rotation.bytes_for(shape, plan.room.rotation_bytes)
    if needed > MOST_BYTES - MOST_COPIED_BYTES // 2:
        raise ManyheadsError(
            f"{shape.keys:,} tokens of {shape.kv_heads} KV heads in {shape.dtype}: two such caches take {gib(needed)}, and "
            f"{gib(MOST_BYTES)} are the most that a run may take; valid: fewer contexts=, or dtypes= of fewer bytes"
        )


def _contest(shape: Shape, buffer: Buffer, paths: Sequence[Path], plan: Plan) -> Contest:
    rotation = Rotation(buffer, shape)
    checked_step = rotation.step(0)
    edge = shape.heads * shape.queries * (shape.head_dim + shape.v_head_dim) * checked_step.q.element_size()
    return run_contest(
        paths, probes(buffer.words(), plan.threads), shape=shape, step=rotation.next, checked_step=checked_step,
        expected=reference(checked_step), bound=BOUNDS[shape.dtype], moved_bytes=shape.cache_bytes + edge, flops=shape.flops,
        pace=plan.pace,
    )  # fmt: skip
