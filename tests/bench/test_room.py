"""The memory over which caches are rotated."""

from __future__ import annotations

from manyheads.bench.room import room

MIB = 1 << 20


def test_four_times_the_cache():
    found = room(32 * MIB, memory_bytes=64 << 30)
    assert (found.rotation_bytes, found.note) == (128 * MIB, "")


def test_less_where_memory_is_small_and_it_says_so():
    found = room(1024 * MIB, memory_bytes=64 << 30)
    assert found.rotation_bytes == 2 << 30
    assert "2.0 times the last-level cache instead of 4" in found.note
    assert room(260 * MIB, memory_bytes=2 << 30).rotation_bytes == 512 * MIB


def test_a_cache_of_unknown_size_is_said_to_be_assumed(monkeypatch):
    monkeypatch.setattr("manyheads.cost.machine.last_level_cache_bytes", lambda: None)
    assert "64 MiB were assumed" in room(memory_bytes=64 << 30).note
