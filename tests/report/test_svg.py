"""A plot as a file of its own."""

from __future__ import annotations

from xml.etree import ElementTree

from manyheads.report.plot import Plot, Series
from manyheads.report.svg import render_svg

SVG = "{http://www.w3.org/2000/svg}"


def plot(*series: Series) -> Plot:
    return Plot('a < "b"', "what & why", "tokens", "bytes", (256, 1024), series)


def test_is_well_formed_and_asks_nothing_of_anyone() -> None:
    text = render_svg(plot(Series("<one>", "<one>", (1, 2)), Series("two", "two", (5, 9))))
    tree = ElementTree.fromstring(text)
    assert tree.find(f"{SVG}title").text == 'a < "b"'
    assert tree.find(f"{SVG}desc").text == "what & why"
    assert len(tree.findall(f"{SVG}polyline")) == 2
    assert "<one>" in [each.text for each in tree.findall(f"{SVG}text")]
    assert "href" not in text
    assert text.count("http") == 1  # the name of the format


def test_lines_that_lie_on_each_other_are_one() -> None:
    text = render_svg(plot(Series("one", "one", (1, 2)), Series("two", "two", (1, 2))))
    assert "one + 1" in text
    assert text.count("<polyline") == 1


def test_nothing_to_draw_is_no_picture() -> None:
    assert render_svg(plot()) is None
