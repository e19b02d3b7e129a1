"""The report: ratios by hand, what is flagged, and the JSON that scripts read."""

from __future__ import annotations

from manyheads.bench.contest import Contest, Result
from manyheads.bench.paths import BEST_OF_TORCH, OURS, STOCK
from manyheads.bench.peers import ONNXRUNTIME
from manyheads.bench.probes import Peaks
from manyheads.bench.shape import Shape
from manyheads.bench.tables import Measured, faults, impossible, losses, plots, report, summary, wrong
from manyheads.report.jsonform import encode
from manyheads.report.svg import render_svg
from manyheads.report.text import as_text

PEAKS = Peaks(1e9, "numpy's sum", 1e12, 2e12)  # a gigabyte a second


def timed(family: str, *seconds: float) -> Result:
    return Result(family, family, 2, 1e-6, 1e-5, seconds)


def contest(*results: Result, dtype: str = "bf16", keys: int = 2048) -> Contest:
    """A step that reads a megabyte: a millisecond at least."""
    return Contest(Shape(32, 8, 128, 128, keys, dtype), results, PEAKS, PEAKS, 1_000_000, 1)


def test_a_line_for_each_shape():
    mine = timed(OURS, 0.0020, 0.00125, 0.0030)  # median 2 ms, best 1.25 ms: 80% of the roofline
    bf16 = contest(mine, timed(STOCK, 0.040), timed(BEST_OF_TORCH, 0.005))
    fp16 = contest(mine, timed(ONNXRUNTIME, 0.007), dtype="fp16")
    rows = summary((bf16, fp16)).rows
    assert rows[0] == ("bf16", "8", "2,048", "2", "1.00 ms", "2.00 ms", "80%", "20.0x", "2.5x", "-", "3.5x")
    assert rows[1] == ("fp16", "8", "2,048", "2", "1.00 ms", "2.00 ms", "80%", "-", "-", "-", "3.5x")


def test_what_is_not_to_be_believed_is_said():
    lie = Result(STOCK, STOCK, 2, 0.5, 1e-5, reason="disagrees with the float64 reference: error 5.0e-01")
    found = Measured((contest(timed(OURS, 0.0009), lie),))
    assert len(wrong(found)) == len(impossible(found)) == 1
    assert (
        "32 query heads x 128 over 8 KV heads, bf16, 2,048 tokens: torch SDPA with enable_gqa disagrees"
        in wrong(found)[0]
    )
    assert "at 111% of the roofline, more than 105%" in impossible(found)[0]
    text = as_text(report(found, title="t"))
    assert "disagrees" in text
    assert "111% (!)" in text
    assert report(found, title="t").data["faults"] == faults(found)
    assert faults(Measured((contest(timed(OURS, 0.002)),))) == []


def test_the_machine_has_a_row_for_each_type_that_it_multiplies():
    fast, none = Peaks(1e9, "a sum", 1e12, 2e12, 0.5e12, "a loop"), Peaks(1e9, "a sum", 1e12, fp32_by="a product")
    for peaks, expected in (
        (fast, [("fp32 products", "best of four probes: a loop"), ("bf16 products", "peak of steps in bf16"),
                ("fp16 products", "slower than fp32, whose peak counts")]),
        (none, [("fp32 products", "best of four probes: a product")]),
    ):  # fmt: skip
        found = Contest(Shape(32, 8, 128, 128, 64, "bf16"), (), peaks, peaks, 1_000_000, 1)
        rows = report(Measured((found,)), title="t").tables[0].rows
        assert [(row[0], row[3]) for row in rows[1:]] == expected


def test_absent_peers_stand_under_the_report_once():
    gone = Result(ONNXRUNTIME, ONNXRUNTIME, 2, None, 1e-5, reason="onnx is not installed: pip install onnx")
    other = Result("x", "x", 2, None, 1e-5, reason="it has no int8 cache")
    told = report(Measured((contest(timed(OURS, 0.002), gone, other), contest(gone, keys=8192))), title="t")
    assert told.notes == ("onnxruntime GroupQueryAttention: onnx is not installed: pip install onnx",)


def test_losses_stand_beside_gains():
    found = losses((contest(timed(OURS, 0.004), timed(BEST_OF_TORCH, 0.002), timed(STOCK, 0.009)),))
    assert len(found) == 1
    assert "torch's best form 2.00 ms, ours 4.00 ms (2.00 times as long)" in found[0]


def test_threads_stand_in_every_row_of_a_path():
    told = report(Measured((contest(timed(OURS, 0.004), timed(STOCK, 0.009)),), around={"threads": 2}), title="t")
    paths = told.tables[2]
    at = [column.name for column in paths.columns].index("threads")
    assert [row[at] for row in paths.rows] == ["-", "2", "2"]  # the roofline has none of its own


def test_the_json_that_scripts_read():
    absent = Result(ONNXRUNTIME, ONNXRUNTIME, 2, None, 1e-5, reason="not installed")
    broken = Result("x", "x", 2, float("inf"), 1e-5, reason="disagrees")
    found = Measured((contest(timed(OURS, 0.002, 0.001), absent, broken),), around={"threads": 2})
    data = report(found, title="t").data
    assert encode(data)
    assert list(data) == ["schema", "threads", "faults", "decode", "latent", "prefill", "generation"]
    assert data["schema"] == "manyheads.bench/1"
    one = data["decode"][0]
    assert list(one) == [
        "heads", "kv_heads", "head_dim", "v_head_dim", "queries", "keys", "dtype", "moved_bytes", "flops", "roofline", "paths"
    ]  # fmt: skip
    assert one["roofline"]["best_seconds"] == 0.001
    assert one["roofline"]["bound_by"] == "memory"
    mine, other, wrong_one = one["paths"]
    assert list(mine) == [
        "name", "family", "threads", "agrees", "error", "error_bound", "reason", "rounds", "median_seconds", "best_seconds",
        "share_of_roofline", "share_of_roofline_median", "impossible",
    ]  # fmt: skip
    assert (mine["median_seconds"], mine["best_seconds"], mine["rounds"]) == (0.0015, 0.001, 2)
    assert (mine["share_of_roofline"], mine["impossible"]) == (1.0, False)
    assert (other["median_seconds"], other["agrees"], other["reason"]) == (None, None, "not installed")
    assert (wrong_one["error"], wrong_one["agrees"], wrong_one["median_seconds"]) == (None, False, None)


def test_a_plot_has_a_line_a_path_and_the_roofline():
    few = contest(timed(OURS, 0.002), timed(STOCK, 0.02), timed(ONNXRUNTIME, 0.01))
    many = contest(timed(OURS, 0.008), timed(STOCK, 0.09), keys=8192)
    (plot,) = plots((few, many))
    assert [(series.name, series.values) for series in plot.series] == [
        (OURS, (0.002, 0.008)), ("roofline", (0.001, 0.001)), (STOCK, (0.02, 0.09)),
        (BEST_OF_TORCH, (0.02, 0.09)),  # of which the stock form is one: one line
    ]  # fmt: skip
    assert plot.x == (2048, 8192)
    picture = render_svg(plot)
    assert picture.count("<polyline") == 3
    assert ">roofline</text>" in picture
    assert plots((few,)) == []


def test_a_pipe_of_eighty_columns_keeps_every_path_on_its_line():
    told = report(
        Measured((contest(timed(OURS, 0.00123), timed(ONNXRUNTIME, 0.123)),), around={"threads": 2}), title="t"
    )
    lines = as_text(told).splitlines()
    assert max(map(len, lines)) <= 80
    (mine,) = [line.split() for line in lines if "  manyheads " in line]
    assert mine == ["2,048", "manyheads", "2", "1.23", "ms", "1.23", "ms", "81%", "1.0e-06"]
