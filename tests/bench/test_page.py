"""docs/decode-speed.md is written only while everything is right."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from manyheads.bench.contest import Contest, Result
from manyheads.bench.paths import OURS, STOCK
from manyheads.bench.probes import Peaks
from manyheads.bench.shape import Shape
from manyheads.bench.tables import Measured

SCRIPT = str(Path(__file__).parents[2] / "benchmarks" / "decode.py")
PEAKS = Peaks(1e9, "numpy's sum", 1e12, 2e12)
AROUND = {
    "threads": 2, "versions": {"torch": "9.9"}, "settings": {"rounds": 15, "rotation_bytes": 1 << 30},
    "machine": {"processor": "P", "cores": 2, "memory_bytes": 1 << 34, "last_level_cache_bytes": 1 << 28},
}  # fmt: skip


def measured(*results: Result) -> Measured:
    contests = [
        Contest(Shape(32, 8, 128, 128, keys, "bf16"), results, PEAKS, PEAKS, 1_000_000, 1) for keys in (2048, 8192)
    ]
    return Measured(tuple(contests), around=AROUND)


RIGHT = measured(Result(OURS, OURS, 2, 1e-6, 1e-5, (0.004,)), Result(STOCK, STOCK, 2, 1e-6, 1e-5, (0.002,)))
WRONG = measured(Result(OURS, OURS, 2, 0.5, 1e-5, reason="disagrees with the float64 reference"))


def run(monkeypatch, target: Path, found: Measured) -> int:
    monkeypatch.setattr(sys, "argv", ["decode.py", "--no-real", "--output", str(target)])
    script = runpy.run_path(SCRIPT)
    monkeypatch.setitem(script["measure"].__globals__, "bench", lambda request, say: found)
    return script["main"]()


def test_a_red_check_writes_nothing(monkeypatch, tmp_path, capsys):
    target = tmp_path / "page.md"
    assert run(monkeypatch, target, WRONG) == 1
    assert list(tmp_path.iterdir()) == []
    assert "no page written; disagreeing with float64" in capsys.readouterr().err


def test_the_page_has_gains_losses_machine_and_command(monkeypatch, tmp_path):
    target = tmp_path / "page.md"
    assert run(monkeypatch, target, RIGHT) == 0
    page, picture = target.read_text(), (tmp_path / "page.svg").read_text()
    assert "python benchmarks/decode.py --no-real" in page
    assert "on P, 2 cores, 16.00 GiB of memory" in page
    assert "torch 9.9" in page
    assert "![Time of a decode step against cached tokens](page.svg)" in page
    assert picture.startswith("<svg ")
    line = "torch SDPA with enable_gqa 2.00 ms, ours 4.00 ms (2.00 times as long)"
    assert page.count(line) == 2
    assert page.index("## Where others are faster") < page.index(line)
    assert "No path was faster than the roofline allows." in page


def test_a_page_with_impossible_times_says_so(monkeypatch, tmp_path):
    quick = replace(RIGHT, decode=measured(Result(OURS, OURS, 2, 1e-6, 1e-5, (0.0001,))).decode)
    assert run(monkeypatch, tmp_path / "page.md", quick) == 0
    assert "1000% of the roofline" in (tmp_path / "page.md").read_text()


def test_the_real_request_is_the_standard_one(monkeypatch, tmp_path):
    """All contexts, KV heads and types; --quick and --threads reach it."""
    asked = []
    script = runpy.run_path(SCRIPT)
    monkeypatch.setattr(
        sys, "argv", ["d", "--no-real", "--quick", "--threads", "1", "--output", str(tmp_path / "p.md")]
    )
    monkeypatch.setitem(script["measure"].__globals__, "bench", lambda request, say: asked.append(request) or RIGHT)
    assert script["main"]() == 0
    (request,) = asked
    assert (request.quick, request.threads, request.contexts, request.kv_heads, request.model) == (
        True,
        1,
        (),
        (),
        None,
    )
    from manyheads.bench.run import CONTEXTS, KV_HEADS

    assert (CONTEXTS, KV_HEADS) == ((2048, 8192, 32768), (32, 8, 4, 1))


@pytest.mark.parametrize("text", ["a | b", "plain"])
def test_a_bar_in_a_cell_does_not_make_another_column(text):
    from manyheads.report import Column, Table

    table = Table("q", (Column("x"), Column("y", "right")), ((text, "1"),), ("a note",))
    lines = runpy.run_path(SCRIPT)["markdown"](table).splitlines()
    assert lines[1] == "| --- | ---: |"
    assert lines[2].replace("\\|", "").count("|") == 3
    assert lines[-1] == "- a note"
