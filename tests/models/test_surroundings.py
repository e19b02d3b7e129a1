"""How busy the machine is, and what is told of it."""

from __future__ import annotations

import os
import socket

import pytest

from manyheads.checkpoints import open_model
from manyheads.models import surroundings

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("busy", "threads"), [(0, 4), (1, 3), (3, 1), (50, 1)])
def test_threads_are_left_to_others_and_one_always_remains(monkeypatch, busy: int, threads: int) -> None:
    monkeypatch.setattr(surroundings, "busy_cores", lambda: busy)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)), raising=False)
    assert surroundings.usual_threads() == threads


def test_neither_the_host_nor_the_user_is_named() -> None:
    told = str(surroundings.machine()) + str(surroundings.versions())
    assert socket.gethostname() not in told
    assert os.path.expanduser("~") not in told
    assert {"torch", "transformers", "python", "manyheads"} <= surroundings.versions().keys()


def test_an_x_ray_gives_torch_its_threads_back(tiny) -> None:
    from manyheads.models.load.text import shipped_text
    from manyheads.xray.run import Request, xray

    before = torch.get_num_threads()
    report = xray(Request(open_model(tiny("llama")), shipped_text(), tokens=50, threads=before + 1))
    assert report.machine["threads"] == before + 1
    assert torch.get_num_threads() == before
