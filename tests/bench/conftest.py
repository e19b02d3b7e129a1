"""What the tests of the bench share: one thread, little memory, and rounds that take no time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True)
def _small_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    from manyheads.bench import probes

    monkeypatch.setattr(probes, "READ_BYTES", 1 << 16)
    monkeypatch.setattr(probes, "MATRIX", 32)
    monkeypatch.setattr(probes, "MULTIPLY_ROUNDS", 64)


@pytest.fixture
def plan():
    from manyheads.bench.contest import Pace
    from manyheads.bench.decode import Plan
    from manyheads.bench.room import Room

    return Plan(Room(1 << 20, 1 << 18), 1, Pace(rounds=2, least=1, path_seconds=10.0, pause_seconds=0.0))
