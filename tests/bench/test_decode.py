"""Shapes from first to last."""

from __future__ import annotations

import pytest

from manyheads.bench.contestants import decode_paths, ours
from manyheads.bench.decode import Plan, decode, prefill, shapes
from manyheads.bench.paths import OURS, Path
from manyheads.bench.room import Room
from manyheads.errors import ManyheadsError

HEADS = [(8, 2, 16, 16), (8, 8, 16, 16)]


def test_every_combination_type_by_type():
    found = shapes(HEADS, (64, 128), ("fp32", "int8"))
    assert [(s.dtype, s.kv_heads, s.keys) for s in found] == [
        ("fp32", 2, 64), ("fp32", 2, 128), ("fp32", 8, 64), ("fp32", 8, 128),
        ("int8", 2, 64), ("int8", 2, 128), ("int8", 8, 64), ("int8", 8, 128),
    ]  # fmt: skip


def test_a_contest_for_each_with_ours_in_all(plan):
    wanted = shapes(HEADS[:1], (64, 256), ("bf16", "int8"))
    contests = decode(wanted, plan, paths=decode_paths(1))
    assert [contest.shape for contest in contests] == list(wanted)
    for contest in contests:
        assert contest.ours.agrees
        assert len(contest.ours.seconds) == plan.pace.rounds
        # the cache, and 8 heads of queries and results in the type of the queries
        width = 4 if contest.shape.dtype == "int8" else 2
        assert contest.moved_bytes == contest.shape.cache_bytes + 8 * (16 + 16) * width
        assert contest.floor.seconds > 0


def test_a_wrong_kernel_gets_no_figure_and_the_others_theirs(plan):
    def broken(step):
        right = ours(1).prepare(step)
        return lambda: right().roll(1, dims=1)

    (contest,) = decode(
        shapes(HEADS[:1], (64,), ("fp32",)), plan,
        paths=(Path(OURS, OURS, 1, ours(1).supports, broken), *decode_paths(1)[1:3]),
    )  # fmt: skip
    assert contest.ours is None
    assert "disagrees" in contest.results[0].reason
    assert contest.results[1].seconds


def test_a_prompt_has_as_many_queries_as_keys(plan):
    (contest,) = prefill(shapes(HEADS[:1], (40,), ("fp32",)), plan)
    assert contest.shape.queries == contest.shape.keys == 40
    assert contest.flops == 2 * 8 * (40 * 41 // 2) * (16 + 16)
    assert contest.ours.agrees


def test_what_does_not_fit_is_refused_before_anything_is_made():
    said: list[str] = []
    plan = Plan(Room(1 << 20, 1 << 18), 1, say=said.append)
    wanted = shapes([(32, 32, 128, 128)], (1024, 1 << 20), ("fp32",))
    with pytest.raises(
        ManyheadsError, match=r"1,048,576 tokens of 32 KV heads in fp32: two such caches take 64.00 GiB"
    ):
        decode(wanted, plan)
    assert said == []
