"""Lines on logarithmic axes as geometry."""

from __future__ import annotations

import itertools

from manyheads.report.plot import HEIGHT, WIDTH, Plot, Series, draw


def plot(*series: Series, x: tuple[int, ...] = (256, 1024, 4096)) -> Plot:
    return Plot("title", "description", "tokens", "bytes", x, series)


def points(line: str) -> list[tuple[float, float]]:
    return [tuple(map(float, point.split(","))) for point in line.split()]


def test_what_grows_in_proportion_is_straight_and_a_doubling_is_a_step_everywhere() -> None:
    drawn = draw(plot(Series("a", "a", (256 * 7, 1024 * 7, 4096 * 7))))
    (x0, y0), (x1, y1), (x2, y2) = points(drawn.lines[0].points)
    assert x1 - x0 == x2 - x1 > 0
    assert abs((y0 - y1) - (y1 - y2)) < 0.2
    assert y2 < y1 < y0


def test_equal_series_are_one_line_that_names_them_all() -> None:
    drawn = draw(plot(Series("a 1", "a", (1, 2, 3)), Series("b 1", "b", (1, 2, 4)), Series("c 1", "c", (1, 2, 3))))
    assert [line.names for line in drawn.lines] == [("a 1", "c 1"), ("b 1",)]
    assert [(label.text, label.more) for label in drawn.labels] == [("a", 1), ("b", 0)]


def test_everything_lies_inside_the_box_and_ticks_are_few() -> None:
    drawn = draw(plot(Series("a", "a", (1, 1, 1)), Series("b", "b", (1 << 40, 1 << 41, 1 << 50))))
    for line in drawn.lines:
        for x, y in points(line.points):
            assert drawn.left <= x <= drawn.right < WIDTH
            assert drawn.top <= y <= drawn.bottom < HEIGHT
    assert 2 <= len(drawn.y_ticks) <= 7
    assert drawn.y_ticks[0].text == "1 B"


def test_labels_of_lines_that_end_together_are_moved_apart() -> None:
    many = [Series(f"s{i}", f"s{i}", (100, 200, 1_000_000 + i)) for i in range(6)]
    many.append(Series("low", "low", (100, 150, 160)))
    drawn = draw(plot(*many))
    heights = sorted(label.y for label in drawn.labels)
    assert all(below - above >= 20 for above, below in itertools.pairwise(heights))
    assert drawn.top <= heights[0]
    assert heights[-1] <= HEIGHT


def test_ticks_are_powers_of_two_with_their_usual_names() -> None:
    drawn = draw(plot(Series("a", "a", (1 << 20, 1 << 30)), x=(512, 1 << 21)))
    assert [tick.text for tick in drawn.x_ticks][:2] == ["512", "2k"]
    assert {tick.text for tick in drawn.y_ticks} <= {"1 MiB", "4 MiB", "16 MiB", "64 MiB", "256 MiB", "1 GiB"}


def test_what_cannot_be_drawn_is_left_out() -> None:
    assert draw(plot()) is None
    assert draw(plot(Series("zero", "zero", (0, 1, 2)))) is None
    assert draw(plot(Series("a", "a", (1,)), x=(256,))) is None
    assert draw(plot(Series("short", "short", (1, 2)))) is None


def test_one_value_everywhere_is_a_line_too() -> None:
    drawn = draw(plot(Series("flat", "flat", (1024, 1024, 1024))))
    assert len({y for _, y in points(drawn.lines[0].points)}) == 1


def seconds(*series: Series) -> Plot:
    return Plot("title", "description", "tokens", "time", (256, 1024), series, unit="seconds")


def test_seconds_are_marked_at_one_two_and_five() -> None:
    drawn = draw(seconds(Series("a", "a", (0.0012, 0.018))))
    assert [tick.text for tick in drawn.y_ticks] == ["1 ms", "2 ms", "5 ms", "10 ms", "20 ms"]
    assert drawn.y_ticks[0].at == drawn.bottom
    assert drawn.y_ticks[-1].at == drawn.top
    assert drawn.lines[0].end == "18.0 ms"


def test_where_seconds_span_much_only_powers_of_ten_are_named() -> None:
    drawn = draw(seconds(Series("a", "a", (0.00003, 0.4))))
    assert [tick.text for tick in drawn.y_ticks] == ["100 µs", "1 ms", "10 ms", "100 ms"]
    (x0, y0), (x1, y1) = points(drawn.lines[0].points)
    assert drawn.top <= y1 < y0 <= drawn.bottom
    assert x0 < x1


def test_a_value_on_a_mark_and_one_value_everywhere() -> None:
    drawn = draw(seconds(Series("a", "a", (0.001, 0.001))))
    assert [tick.text for tick in drawn.y_ticks] == ["1 ms", "2 ms"]


def test_shares_are_drawn_on_plain_axes() -> None:
    plot = Plot(
        "t", "d", "heads removed", "right", (0, 8, 64), (Series("one", "one", (1.0, 0.5, 0.0)), Series("no", "no", (2.0, 0, 0))),
        unit="share",
    )  # fmt: skip
    drawn = draw(plot)
    assert drawn is not None
    assert [tick.text for tick in drawn.y_ticks] == ["0%", "25%", "50%", "75%", "100%"]
    assert [tick.text for tick in drawn.x_ticks] == ["0", "16", "32", "48", "64"]
    assert len(drawn.lines) == 1  # two is no share
    points = [tuple(map(float, point.split(","))) for point in drawn.lines[0].points.split(" ")]
    middle = (drawn.top + drawn.bottom) / 2
    eighth = drawn.left + (drawn.right - drawn.left) / 8
    assert points == [(drawn.left, drawn.top), (round(eighth, 1), middle), (drawn.right, drawn.bottom)]
    assert drawn.lines[0].end == "0%"
