"""A path that is wrong gets no figure; those that are right are timed in turns."""

from __future__ import annotations

import itertools
import time

import pytest

from manyheads.bench.contest import Contest, Pace, Result, run_contest
from manyheads.bench.contestants import torch_paths
from manyheads.bench.paths import BEST_OF_TORCH, OURS, STOCK, Path
from manyheads.bench.probes import Peaks, probes
from manyheads.bench.reference_check import BOUNDS, reference
from manyheads.bench.rotation import Buffer, Rotation
from manyheads.bench.shape import Shape
from manyheads.ops.answer import No, Yes

SHAPE = Shape(8, 2, 16, 16, 64, "fp32")
PACE = Pace(rounds=4, least=2, path_seconds=10.0, pause_seconds=0.0)
RIGHT = torch_paths(1)[0]


def path(name: str, prepare=RIGHT.prepare, supports=lambda shape: Yes()) -> Path:
    return Path(name, name, 1, supports, prepare)


def held(*paths: Path, pace: Pace = PACE) -> dict[str, Result]:
    buffer = Buffer("fp32", 1 << 20, seed=0)
    rotation = Rotation(buffer, SHAPE)
    checked_step = rotation.step(0)
    contest = run_contest(
        paths, probes(buffer.words(), 1), shape=SHAPE, step=rotation.next, checked_step=checked_step, expected=reference(checked_step),
        bound=BOUNDS["fp32"], moved_bytes=SHAPE.cache_bytes, flops=SHAPE.flops, pace=pace,
    )  # fmt: skip
    return {result.name: result for result in contest.results}


def slightly_wrong(step):
    """The right answer but for one head, a thousandth off."""
    right = RIGHT.prepare(step)

    def call():
        out = right().clone()
        out[0, 5] *= 1.001
        return out

    return call


def test_a_wrong_path_gets_no_figure():
    results = held(RIGHT, path("wrong", slightly_wrong))
    wrong = results["wrong"]
    assert wrong.seconds == ()
    assert wrong.agrees is False
    assert wrong.error == pytest.approx(1e-3, rel=1e-2)
    assert "disagrees with the float64 reference: error 1.0e-03, at most 1e-05 is allowed" in wrong.reason
    right = results[RIGHT.name]
    assert right.agrees is True
    assert len(right.seconds) == PACE.rounds
    assert all(seconds > 0 for seconds in right.seconds)


def test_a_path_that_cannot_or_fails_is_named_with_its_reason():
    def failing(step):
        raise RuntimeError("no such\ninstruction")

    results = held(path("cannot", supports=lambda shape: No("too wide")), path("fails", failing), RIGHT)
    assert (results["cannot"].reason, results["cannot"].agrees, results["cannot"].seconds) == ("too wide", None, ())
    assert (results["fails"].reason, results["fails"].seconds) == ("failed: no such instruction", ())


def test_paths_take_turns_each_on_another_cache():
    order: list[tuple[str, int]] = []

    def noting(name):
        def prepare(step):
            order.append((name, step.k.data_ptr()))
            return RIGHT.prepare(step)

        return path(name, prepare)

    held(noting("a"), noting("b"))
    timed = order[2:]  # after each was checked
    assert [name for name, _ in timed[:4]] in (["a", "a", "b", "b"], ["b", "b", "a", "a"])  # twice: the second is timed
    assert [name for name, _ in timed].count("a") == 2 * PACE.rounds
    assert all(before[1] != after[1] for before, after in itertools.pairwise(timed))


def test_a_slow_path_sits_out():
    def slow(step):
        right = RIGHT.prepare(step)

        def call():
            time.sleep(0.02)
            return right()

        return call

    results = held(path("slow", slow), RIGHT, pace=Pace(rounds=6, least=2, path_seconds=0.03, pause_seconds=0.0))
    assert len(results["slow"].seconds) == 2
    assert len(results[RIGHT.name].seconds) == 6


def contest(*results: Result) -> Contest:
    """Reading at 100 B/s what takes 1,000 B: 10 seconds at least."""
    peaks = Peaks(100.0, "a probe", 1e9, 1e9)
    return Contest(SHAPE, results, peaks, peaks, 1000, 1)


def timed(name: str, family: str, *seconds: float) -> Result:
    return Result(name, family, 1, 1e-7, 1e-5, seconds)


def test_faster_than_the_machine_is_flagged():
    slow, fast, too_fast = (timed("x", OURS, best, 30.0) for best in (20.0, 9.6, 9.5))
    found = contest(slow, fast, too_fast)
    assert found.floor.seconds == 10.0
    assert [found.share(result) for result in (slow, fast)] == [0.5, pytest.approx(10 / 9.6)]
    assert [found.impossible(result) for result in (slow, fast, too_fast)] == [False, False, True]


def test_a_step_in_bf16_is_held_against_products_in_bf16():
    """600 FLOPs at 10 a second in fp32, at 30 in bf16, over as little memory as nothing."""
    peaks = Peaks(1e9, "a probe", 10.0, 30.0, 5.0)
    seconds = {
        dtype: Contest(Shape(8, 2, 16, 16, 64, dtype), (), peaks, peaks, 1, 600).floor.seconds
        for dtype in ("fp32", "bf16", "fp16", "int8")
    }
    assert seconds == {"fp32": 60.0, "bf16": 20.0, "fp16": 60.0, "int8": 60.0}


def test_the_best_form_of_torch_may_be_its_stock_form():
    stock, other = timed("s", STOCK, 2.0), timed("o", BEST_OF_TORCH, 3.0)
    found = contest(stock, other, Result("n", BEST_OF_TORCH, 1, None, 1e-5, reason="cannot"))
    assert found.of(BEST_OF_TORCH) is stock
    assert found.of(STOCK) is stock
    assert found.ours is None


def test_the_next_call_waits_until_the_last_ones_threads_are_still():
    """A thread that spins for 30 ms keeps it waiting; a still process is not kept for long, and nobody is for ever."""
    from threading import Thread

    from manyheads.bench.contest import _wait_until_idle

    def spin(seconds: float) -> None:
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass

    def waited(most: float, busy: float) -> float:
        thread = Thread(target=spin, args=(busy,))
        began = time.perf_counter()
        if busy:
            thread.start()
        _wait_until_idle(most)
        passed = time.perf_counter() - began
        if busy:
            thread.join()
        return passed

    assert min(waited(1.0, 0.03) for _ in range(3)) > 0.02
    assert min(waited(1.0, 0.0) for _ in range(5)) < 0.02
    assert min(waited(0.01, 0.2) for _ in range(3)) < 0.1
