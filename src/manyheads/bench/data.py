"""What was measured as JSON, schema manyheads.bench/1: seconds, bytes and FLOPs as they are, nothing rounded."""

from __future__ import annotations

import math
from typing import Any

from manyheads.bench.contest import Contest, Result
from manyheads.bench.generation import Generation, RunnerResult, Times
from manyheads.bench.probes import Peaks

__all__ = ["SCHEMA", "contest_data", "generation_data"]

SCHEMA = "manyheads.bench/1"


def contest_data(contest: Contest) -> dict[str, Any]:
    """One shape: its sizes, its roofline with the rates behind it, and every path."""
    shape = contest.shape
    return {
        "heads": shape.heads,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "v_head_dim": shape.v_head_dim,
        "queries": shape.queries,
        "keys": shape.keys,
        "dtype": shape.dtype,
        "moved_bytes": contest.moved_bytes,
        "flops": contest.flops,
        "roofline": {
            "best_seconds": contest.floor.seconds,
            "median_seconds": contest.median_floor.seconds,
            "bound_by": contest.floor.bound_by,
            "best": _peaks(contest.best_peaks),
            "median": _peaks(contest.median_peaks),
        },
        "paths": [_path(contest, result) for result in contest.results],
    }


def _peaks(peaks: Peaks) -> dict[str, Any]:
    return {
        "read_bytes_per_second": peaks.bandwidth, "read_by": peaks.read_by, "fp32_flops_per_second": peaks.fp32,
        "fp32_by": peaks.fp32_by, "bf16_flops_per_second": peaks.bf16 or None, "fp16_flops_per_second": peaks.fp16 or None,
    }  # fmt: skip


def _path(contest: Contest, result: Result) -> dict[str, Any]:
    timed = bool(result.seconds)
    return {
        "name": result.name,
        "family": result.family,
        "threads": result.threads,
        "agrees": result.agrees,
        "error": _finite(result.error),
        "error_bound": result.bound,
        "reason": result.reason,
        "rounds": len(result.seconds),
        "median_seconds": result.median if timed else None,
        "best_seconds": result.best if timed else None,
        "share_of_roofline": contest.share(result) if timed else None,
        "share_of_roofline_median": contest.median_floor.seconds / result.median if timed else None,
        "impossible": contest.impossible(result),
    }


def _finite(value: float | None) -> float | None:
    """An error that is not a number, or infinite, is told by `agrees` and `reason`."""
    return value if value is not None and math.isfinite(value) else None


def generation_data(told: Generation | None) -> dict[str, Any] | None:
    """A whole model; None where none was run."""
    if told is None:
        return None
    return {
        "model": told.model,
        "dtype": told.dtype,
        "cached": list(told.cached),
        "prompt": told.prompt,
        "cache_bytes_per_token": told.bytes_a_token,
        "read_bytes_per_second": told.bandwidth,
        "extra_floor_seconds": told.extra_floor_seconds,
        "error_bound": told.bound,
        "ways": [_way(way) for way in told.ways],
    }


def _way(way: RunnerResult) -> dict[str, Any]:
    return {
        "name": way.name,
        "threads": way.threads,
        "reason": way.reason,
        "extra_seconds": way.extra_seconds,
        "first_token_seconds": {str(length): seconds for length, seconds in way.first_seconds.items()},
        "tokens": [_tokens(times) for times in way.times],
        "parts_seconds": {str(length): dict(parts) for length, parts in way.parts.items()},
    }


def _tokens(times: Times) -> dict[str, Any]:
    return {
        "cached": times.cached,
        "median_seconds": times.median if times.seconds else None,
        "best_seconds": min(times.seconds) if times.seconds else None,
        "count": len(times.seconds),
        "error": _finite(times.error),
        "reason": times.reason,
    }
