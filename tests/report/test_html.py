"""A report as one page: nothing from outside, nothing of a stranger's taken for markup, and it reads on any screen."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path

import pytest

from manyheads.report import Column, Report, Table
from manyheads.report.plot import Plot, Series

pytest.importorskip("jinja2")

from manyheads.report.html import GENERATOR, Fact, Templates, Widget, embedded, render_html

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}</title></style></svg>&amp;'


class Page(html.parser.HTMLParser):
    """What a browser would see: elements with their attributes, and the texts of some."""

    VOID = frozenset({"meta", "line", "polyline", "path", "br", "link", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        for tag in self.open:
            self.texts[tag][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def report(word: str = "plain", **changes: object) -> Report:
    table = Table(
        f"What of {word}?", (Column(word), Column("bytes", "right"), Column("they are", "right")),
        ((word, "1,024 B", "equal"), ("two\nlines", "7", "DIFFERS by +1")), notes=(word, "x" * 300),
    )  # fmt: skip
    pairs = Table("How?", (Column("what"), Column("value")), (("a", "b"),))
    settings = {
        "data": {"word": word, "n": 2**70},
        "notes": (word,),
        "next_command": f"manyheads cost {word}",
    } | changes
    return Report(f"{word}: 30 layers", (table, pairs), **settings)


def drawn(word: str = "ideal") -> Plot:
    return Plot(
        f"Cache of {word}", word, word, word, (256, 512, 1024), (Series(word, word, (1, 2, 4)),), f"What of {word}?"
    )


def page(word: str = "plain") -> tuple[str, Page]:
    text = render_html(
        report(word), verdict=Fact(word, word, tone="good"), facts=(Fact(word, word, word, "bad"),), plots=(drawn(word),),
        made=word,
    )  # fmt: skip
    return text, Page(text)


def test_the_page_asks_nothing_of_any_other() -> None:
    text, seen = page()
    for tag, attributes in seen.elements:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base", "form", "audio", "video", "use", "image")
        for name, value in attributes.items():
            assert name not in ("src", "srcset", "href", "action", "poster", "data", "style", "xlink:href") or (
                tag == "a" and value.startswith("#")
            )
            assert not name.startswith("on")
    assert [script.get("type") for script in seen.all("script")] == ["application/json"]
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text, re.IGNORECASE)
    policy = next(meta["content"] for meta in seen.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_a_stranger_s_text_stays_text() -> None:
    text, seen = page(EVIL)
    _, plain = page()
    assert [tag for tag, _ in seen.elements] == [tag for tag, _ in plain.elements]
    assert [set(attributes) for _, attributes in seen.elements] == [set(attributes) for _, attributes in plain.elements]
    assert "<script>alert" not in text
    assert "{{ 7 * 7 }}" in seen.texts["h1"][0]
    assert EVIL in seen.texts["caption"][0]


def test_characters_that_turn_text_around_are_shown_as_escapes() -> None:
    text, seen = page("model\u202egpj.exe\x1b[31m")
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert seen.texts["h1"][0] == "model\\u202egpj.exe\\x1b[31m"


@pytest.mark.parametrize("word", ["plain", EVIL, "</script><script>", "<!--", "\u2028", "ünï"])
def test_the_json_inside_is_the_report_s_data(word: str) -> None:
    text, seen = page(word)
    (script,) = seen.texts["script"]
    assert json.loads(script) == {"word": word, "n": 2**70}
    inside = text.partition('id="data">')[2].partition("</script>")[0]
    assert not set(inside) & set("<>&")


def test_tables_have_captions_headers_and_aligned_numbers() -> None:
    _, seen = page()
    assert seen.texts["caption"] == ["What of plain?", "How?"]
    headers = seen.all("th")
    assert {header["scope"] for header in headers} == {"col", "row"}
    assert [cell["class"] for cell in seen.all("td")][:4] == ["right", "right", "right", "right differs"]
    assert seen.texts["th"][0] == "plain"
    assert "two\nlines" in seen.texts["th"]


def test_the_plot_is_described_for_those_who_cannot_see_it() -> None:
    _, seen = page()
    figure = next(svg for svg in seen.all("svg") if svg.get("role") == "img")
    named = figure["aria-labelledby"].split()
    assert {attributes.get("id") for tag, attributes in seen.elements if tag in ("title", "desc")} >= set(named)
    assert "Cache of plain" in seen.texts["title"]
    assert seen.texts["desc"] == ["plain"]


def test_headings_identifiers_and_language() -> None:
    text, seen = page()
    assert seen.all("html") == [{"lang": "en"}]
    assert len(seen.all("h1")) == 1
    identifiers = [attributes["id"] for _, attributes in seen.elements if "id" in attributes]
    assert len(set(identifiers)) == len(identifiers)
    assert GENERATOR in text[:500]
    for labelled in ("aria-labelledby",):
        for _, attributes in seen.elements:
            assert set((attributes.get(labelled) or "").split()) <= set(identifiers)


def test_long_notes_are_folded_and_short_ones_are_not() -> None:
    _, seen = page()
    assert len(seen.all("details")) == 1
    assert "details" not in [tag for tag, _ in Page(render_html(Report("a: b"))).elements]


@pytest.mark.parametrize(
    ("lengths", "open_notes"),
    [
        ([90, 90, 90, 90, 90], 3),
        ([90, 300, 90], 1),
        ([300, 90], 0),
        ([90, 90, 90, 90], 4),
        ([90, 90, 90, 200], 3),
        ([], 0),
    ],
)
def test_the_first_notes_of_a_table_stand_open(lengths: list[int], open_notes: int) -> None:
    """Three, up to the first that is too long to read in passing; one short one that is left is not folded."""
    notes = tuple(f"{n}{'x' * (length - 1)}" for n, length in enumerate(lengths))
    seen = Page(render_html(Report("a: b", (Table("How?", (Column("a"),), (("b",),), notes),))))
    folded = "".join(seen.texts.get("details", []))
    assert [note in folded for note in notes] == [False] * open_notes + [True] * (len(notes) - open_notes)
    assert "".join(seen.texts.get("li", [])) == "".join(notes)


def test_a_verdict_may_have_a_line_more() -> None:
    seen = Page(render_html(Report("a: b"), verdict=Fact("All agree:", "2 of 2", "Heads: 3 of 8 < 9", "good")))
    assert seen.texts["p"][1] == "b"
    assert seen.texts["p"][2] == "All agree: 2 of 2Heads: 3 of 8 < 9"
    assert len(seen.all("br")) == 1


def test_a_report_of_nothing_is_a_page_too() -> None:
    seen = Page(render_html(Report("only a title")))
    assert seen.texts["h1"] == ["only a title"]
    assert seen.all("table") == []


def test_a_widget_stands_after_its_table_and_its_files_come_once() -> None:
    widgets = [
        Widget("<p>first</p>", "What of plain?", style=".own { color: red; }", scripts=("'use own';",)),
        Widget("<p>second</p>", "How?", style=".own { color: red; }", scripts=("'use own';",)),
    ]
    text = render_html(report(), widgets=widgets)
    places = [text.index(part) for part in (">What of plain?</h2>", "<p>first</p>", ">How?</h2>", "<p>second</p>")]
    assert places == sorted(places)
    assert text.count("'use own';") == 1
    assert text.count(".own {") == 1
    assert len(re.findall(r"script-src 'sha256-[A-Za-z0-9+/]{43}='\"", text)) == 1


def test_what_fills_a_fragment_is_escaped_and_embedded_json_cannot_end_its_element() -> None:
    cell = {"kind": "", "address": EVIL, "x": 0, "y": 0, "strength": None, "words": EVIL, "role": 0, "letters": "<i>"}
    grid = {
        "title": EVIL, "description": EVIL, "width": 1, "height": 1, "left": 1, "side": 1, "layer_ticks": [], "head_ticks": [],
        "cells": [cell], "key": [("role-1", EVIL, 1, "<i>")], "least_width": 1,
    }  # fmt: skip
    seen = Page(Templates("manyheads.heads.page").fill("grid.html", {"grids": [grid]}))
    assert not {"script", "i"} & {tag for tag, _ in seen.elements}
    assert seen.all("rect")[0]["data-head"] == EVIL
    text = embedded({"word": EVIL, "n": [1, 2]})
    assert not set(text) & set("<>&")
    assert json.loads(text) == {"word": EVIL, "n": [1, 2]}


@pytest.mark.browser
def test_a_stranger_s_script_does_not_run_beside_a_widget_s(browser, tmp_path: Path) -> None:
    text = render_html(report(), widgets=[Widget("<p>w</p>", "How?", scripts=("throw Error('ours')",))])
    path = tmp_path / "page.html"
    path.write_text(text.replace("<main>", "<main><script>document.title = 'ran'</script>"), encoding="utf-8")
    seen = browser.new_page()
    complaints: list[str] = []
    seen.on("pageerror", lambda error: complaints.append(str(error)))
    seen.goto(path.as_uri())
    assert seen.title() == "plain: 30 layers"
    assert complaints == ["ours"]
    seen.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 768, 360])
def test_a_browser_shows_it_without_complaint_or_sideways_scroll(
    browser, tmp_path: Path, width: int, scheme: str
) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("a-model-with-a-long-name-" * 6)[0], encoding="utf-8")
    seen = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    complaints: list[str] = []
    seen.on("console", lambda message: complaints.append(message.text))
    seen.on("pageerror", lambda error: complaints.append(str(error)))
    seen.on("request", lambda request: complaints.append(request.url) if not request.url.startswith("file:") else None)
    seen.on("requestfailed", lambda request: complaints.append(request.url))
    seen.goto(path.as_uri())
    assert complaints == []
    assert seen.evaluate("document.documentElement.scrollWidth") <= width
    assert seen.evaluate("getComputedStyle(document.body).backgroundColor") == {
        "light": "rgb(252, 251, 249)", "dark": "rgb(20, 24, 26)",
    }[scheme]  # fmt: skip
    assert seen.evaluate("JSON.parse(document.getElementById('data').textContent).word").startswith("a-model")
    seen.close()


@pytest.mark.browser
def test_nothing_runs_even_where_escaping_failed(browser, tmp_path: Path) -> None:
    text, _ = page()
    path = tmp_path / "page.html"
    path.write_text(text.replace("<main>", "<main><script>document.title = 'ran'</script>"), encoding="utf-8")
    seen = browser.new_page()
    seen.goto(path.as_uri())
    assert seen.title() == "plain: 30 layers"
    seen.close()
