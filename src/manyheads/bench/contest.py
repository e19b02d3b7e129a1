"""All paths in turns, round after round, so that whatever else the machine does falls on all of them.

Before that each is held against the reference on the input itself: one that disagrees is named, and never timed.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.bench.paths import BEST_OF_TORCH, OURS, STOCK, Path
from manyheads.bench.probes import Peaks, Probe
from manyheads.bench.reference_check import error
from manyheads.bench.shape import Shape
from manyheads.cost.roofline import Floor, floor
from manyheads.ops.answer import No

__all__ = ["IMPOSSIBLE", "Contest", "Pace", "Result", "run_contest"]

IMPOSSIBLE = 1.05
"""A path at more than this share of the roofline was not measured right: the roofline, or what was read, is wrong."""


_STILL_SECONDS = 0.002


@dataclass(frozen=True)
class Pace:
    """How often and how long: rounds, the seconds after which a slow path sits out (after `least` rounds), and the longest
    pause before each call, in which the threads of the last one stop spinning."""

    rounds: int = 15
    least: int = 3
    path_seconds: float = 1.5
    pause_seconds: float = 0.05


@dataclass(frozen=True)
class Result:
    """One path: `seconds` of each call, empty where `reason` says why there are none."""

    name: str
    family: str
    threads: int
    error: float | None
    bound: float
    seconds: tuple[float, ...] = ()
    reason: str = ""

    @property
    def agrees(self) -> bool | None:
        """Whether it computes the function; None where it was not asked."""
        return None if self.error is None else self.error <= self.bound

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def best(self) -> float:
        return min(self.seconds)


@dataclass(frozen=True)
class Contest:
    """What came out for one shape, with the peaks of the machine in those very rounds."""

    shape: Shape
    results: tuple[Result, ...]
    best_peaks: Peaks
    median_peaks: Peaks
    moved_bytes: int
    flops: int

    @property
    def floor(self) -> Floor:
        """The roofline at the best that was read and multiplied; it goes with the best time of a path."""
        return self._floor(self.best_peaks)

    @property
    def median_floor(self) -> Floor:
        """The roofline in the middle of the rounds; it goes with the median time of a path."""
        return self._floor(self.median_peaks)

    def share(self, result: Result) -> float:
        """Part of the roofline that a path reached, best against best."""
        return self.floor.seconds / result.best

    def impossible(self, result: Result) -> bool:
        """Whether it was faster than the machine can be: then the bench is wrong."""
        return bool(result.seconds) and self.share(result) > IMPOSSIBLE

    def of(self, family: str) -> Result | None:
        """The fastest path of a family by its median; the best form of torch may be its stock form too."""
        families = (family, STOCK) if family == BEST_OF_TORCH else (family,)
        timed = [result for result in self.results if result.family in families and result.seconds]
        return min(timed, key=lambda result: result.median, default=None)

    @property
    def ours(self) -> Result | None:
        return self.of(OURS)

    def _floor(self, peaks: Peaks) -> Floor:
        return floor(
            moved_bytes=self.moved_bytes,
            flops=self.flops,
            bandwidth=peaks.bandwidth,
            peak=peaks.products(self.shape.dtype),
        )


def run_contest(
    paths: Sequence[Path], probes: Sequence[Probe], *, shape: Shape, step: Callable[[], Any], checked_step: Any,
    expected: Tensor, bound: float, moved_bytes: int, flops: int, pace: Pace,
) -> Contest:  # fmt: skip
    """Checks every path on `checked_step`, whose right answer is `expected`, and times those that agree on what `step` deals."""
    checked = [_check(path, shape, checked_step, expected, bound) for path in paths]
    runners: dict[str, Callable[[], Callable[[], object]]] = {}
    for path, result in zip(paths, checked, strict=True):
        if result.agrees:
            runners[path.name] = lambda path=path: path.prepare(step())  # type: ignore[misc]
    for probe in probes:
        probe.prepare()()
        runners[probe.name] = probe.prepare
    seconds = _rounds(runners, pace)
    results = [
        Result(r.name, r.family, r.threads, r.error, r.bound, tuple(seconds.get(r.name, ())), r.reason) for r in checked
    ]
    best = Peaks.of(tuple(probes), {probe.name: min(seconds[probe.name]) for probe in probes})
    middle = Peaks.of(tuple(probes), {probe.name: statistics.median(seconds[probe.name]) for probe in probes})
    return Contest(shape, tuple(results), best, middle, moved_bytes, flops)


def _check(path: Path, shape: Shape, checked_step: Any, expected: Tensor, bound: float) -> Result:
    answer = path.supports(shape)
    if isinstance(answer, No):
        return Result(path.name, path.family, path.threads, None, bound, reason=answer.reason)
    try:
        found = error(path.prepare(checked_step)(), expected)
    except Exception as problem:  # noqa: BLE001  a peer's failure is a row that says so, not the end of the bench
        text = " ".join(str(problem).split()) or type(problem).__name__
        return Result(path.name, path.family, path.threads, None, bound, reason=f"failed: {text[:200]}")
    if found <= bound:
        return Result(path.name, path.family, path.threads, found, bound)
    why = f"disagrees with the float64 reference: error {found:.1e}, at most {bound:.0e} is allowed; not timed"
    return Result(path.name, path.family, path.threads, found, bound, reason=why)


def _rounds(runners: Mapping[str, Callable[[], Callable[[], object]]], pace: Pace) -> dict[str, list[float]]:
    """Seconds of every call by name; each round starts with another runner.

    Each is called twice in a row, on two caches, as two layers of a model are, and the second call is timed: its own
    threads are awake then, and nobody else's.
    """
    names = list(runners)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    with torch.inference_mode():
        for turn in range(pace.rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                done = seconds[name]
                if len(done) >= pace.least and sum(done) > pace.path_seconds:
                    continue
                before, call = runners[name](), runners[name]()
                _wait_until_idle(pace.pause_seconds)
                before()
                began = time.perf_counter()
                call()
                done.append(time.perf_counter() - began)
    return seconds


def _wait_until_idle(most_seconds: float) -> None:
    """Waits until this process is still: torch's OpenMP threads spin for 4 to 9 ms after a call, on the cores of the next."""
    until = time.perf_counter() + most_seconds
    used = time.process_time()
    while time.perf_counter() < until:
        time.sleep(_STILL_SECONDS)
        before, used = used, time.process_time()
        if used - before < _STILL_SECONDS / 10:
            return
