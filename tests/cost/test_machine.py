"""What the machine at hand says of itself: its memory, its last-level cache, how busy it is."""

from __future__ import annotations

import os

import pytest

from manyheads.cost import machine
from manyheads.cost.machine import last_level_cache_bytes

MIB = 1 << 20


def listed(folder, **sizes: str):
    for name, size in sizes.items():
        (folder / name).mkdir()
        (folder / name / "size").write_text(f"{size}\n")
    return folder


def test_the_largest_that_is_listed(tmp_path):
    assert last_level_cache_bytes(listed(tmp_path, index0="48K", index2="2048K", index3="266240K")) == 260 * MIB


def test_none_where_nothing_readable_is_listed(tmp_path):
    assert last_level_cache_bytes(tmp_path) is None
    assert last_level_cache_bytes(listed(tmp_path, index0="many")) is None
    assert last_level_cache_bytes(tmp_path / "absent") is None


def test_memory_is_not_told_where_the_system_does_not_say(monkeypatch) -> None:
    assert machine.memory_bytes() > MIB

    def unknown(_):
        raise ValueError

    monkeypatch.setattr(os, "sysconf", unknown)
    assert machine.memory_bytes() is None


@pytest.mark.parametrize(
    ("load", "running", "busy"),
    [(0.0, 0.0, 0), (8.2, 5.0, 5), (8.2, 0.2, 0), (0.3, 7.0, 0), (1.6, 2.0, 2)],
)
def test_busy_is_what_was_busy_and_still_is(monkeypatch, load: float, running: float, busy: int) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(machine, "_running_now", lambda otherwise: running)
    assert machine.busy_cores() == busy


def test_where_the_system_does_not_say_nothing_is_busy(monkeypatch) -> None:
    def unknown() -> tuple[float, float, float]:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", unknown)
    assert machine.busy_cores() == 0
