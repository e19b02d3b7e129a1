"""Ways into the page of heads: tables that sort and filter, rows that lead to maps, a search, who looks at a token, two heads."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")

from manyheads.heads.address import Head
from manyheads.heads.page.maps import PAGE_BYTES, HeadMaps, fit, head_maps, read_byte
from manyheads.heads.page.widgets import HeadNote, maps_widget
from manyheads.report import Column, Report, Table
from manyheads.report.html import render_html
from support.tiny_transformers import build, inputs

QUESTION = "Where does each head look?"
TOKENS = 30
VALUES = ("9", "1,200", "-3", "", "70.5", "2e3", "< 0.1", "12", "8.25")  # sorted by hand below
FALLING = ["2e3", "1,200", "70.5", "12", "9", "8.25", "< 0.1", "-3", ""]


@pytest.fixture(scope="module")
def maps() -> HeadMaps:
    """3 layers of 6 heads on 30 tokens, every one of which can be pointed at, and every key of which is kept."""
    shape = dataclasses.replace(fit(12), rows=TOKENS, keys=TOKENS, blocks=8)
    return head_maps(build("llama"), inputs("llama", batch=1, tokens=TOKENS), shape=shape)


@pytest.fixture
def seen(maps, tmp_path, browser):
    """A page with a table of nine rows, one of eighteen heads, and the maps."""
    heads = [head for layer in maps.layers for _, head in layer.addresses()]
    numbers = Table(
        "What?", (Column("name"), Column("value", "right")), tuple((f"n{n}", v) for n, v in enumerate(VALUES))
    )
    rows = tuple((f"L{head.layer}H{head.head}", f"beside {head.layer}:0") for head in heads)
    listed = Table(QUESTION, (Column("head"), Column("told")), rows)
    widget = maps_widget(
        maps, {"queries": [f" w{n % 7}" for n in range(TOKENS)]}, [HeadNote(h) for h in heads], after=QUESTION
    )
    path = tmp_path / "page.html"
    path.write_text(render_html(Report("tiny: heads", (numbers, listed)), widgets=[widget]), encoding="utf-8")
    page = browser.new_page(viewport={"width": 1_200, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    yield page
    assert complaints == []
    page.close()


def column(seen, table: int, cell: int) -> list[str]:
    cells = seen.locator("main table").nth(table).locator(f"tbody tr:visible > :nth-child({cell})")
    return [text.strip() for text in cells.all_inner_texts()]


@pytest.mark.browser
def test_a_heading_sorts_numbers_as_numbers_with_what_is_missing_last(seen) -> None:
    heading = seen.locator("main table").nth(0).locator("thead th").nth(1)
    heading.get_by_role("button").click()
    assert column(seen, 0, 2) == FALLING
    assert heading.get_attribute("aria-sort") == "descending"
    heading.get_by_role("button").press("Enter")
    assert column(seen, 0, 2) == [*FALLING[-2::-1], ""]
    heading.get_by_role("button").click()
    assert column(seen, 0, 2) == list(VALUES)
    assert heading.get_attribute("aria-sort") == "none"


@pytest.mark.browser
def test_words_leave_the_rows_that_hold_them(seen) -> None:
    field = seen.get_by_role("searchbox", name="filter the rows")
    assert field.count() == 1  # nine rows need none
    field.fill("L1 1:0")
    assert column(seen, 1, 1) == [f"L1H{n}" for n in range(6)]
    assert "6 of 18 rows" in seen.inner_text(".filter")
    field.fill("")
    assert len(column(seen, 1, 1)) == 18


@pytest.mark.browser
def test_a_row_leads_to_the_map_of_its_head(seen) -> None:
    seen.locator("main table").nth(1).get_by_role("button", name="L2H3").click()
    assert seen.input_value("#heads-head") == str(2 * 6 + 3)
    assert seen.evaluate("document.getElementById('heads-view').getBoundingClientRect().top") < 900
    seen.locator("main table").nth(1).get_by_role("button", name="1:0").first.click()
    assert seen.input_value("#heads-head") == "6"


@pytest.mark.browser
def test_a_word_is_found_one_token_after_the_other(seen) -> None:
    seen.fill("#heads-find", "W3")  # tokens 3, 10, 17, 24
    assert seen.inner_text("#heads-found") == "1 of 4"
    assert "(token 4, held)" in seen.inner_text("#heads-told")
    seen.press("#heads-find", "Enter")
    assert "(token 11, held)" in seen.inner_text("#heads-told")
    seen.click("#heads-found-previous")
    seen.click("#heads-found-previous")
    assert seen.inner_text("#heads-found") == "4 of 4"
    assert "(token 25, held)" in seen.inner_text("#heads-told")
    seen.fill("#heads-find", "w9")
    assert seen.inner_text("#heads-found") == "not in this text"


@pytest.mark.browser
def test_who_looks_at_a_token(seen, maps) -> None:
    """Of a head, the column of its matrix; of all heads, the mean of that column over the queries that can see the key."""
    key, head = 4, 8
    seen.select_option("#heads-head", str(head))
    seen.check("#heads-by")
    seen.locator("#heads-queries > span").nth(key).click()
    assert "“w4” (token 5, held) is looked at by" in seen.inner_text("#heads-told")
    matrix = {}
    for layer in maps.layers:
        for place, at in layer.addresses():
            weights = [0.0] * TOKENS
            for row, query in enumerate(layer.rows.tolist()):
                for n, found in enumerate(layer.strongest[place, row].tolist()):
                    if found == key:
                        weights[query] = max(weights[query], float(read_byte(layer.weights[place, row, n])))
            matrix[at] = weights
    own = matrix[Head(1, 2)]
    best = max(range(TOKENS), key=lambda query: own[query])
    line = seen.locator("#heads-list li").nth(1)
    assert line.locator(".share").inner_text() == (f"{own[best]:.0%}" if own[best] >= 0.0995 else f"{own[best]:.1%}")
    lit = seen.locator("#heads-queries span.key")
    assert lit.count() == min(sum(weight > 0 for weight in own), 12)
    most = max(matrix, key=lambda at: sum(matrix[at][key:]))
    named = seen.locator("#heads-on-key button").first
    assert named.inner_text() == f"L{most.layer}H{most.head}"
    named.click()
    assert seen.input_value("#heads-head") == str(most.layer * 6 + most.head)
    assert "(token 5" in seen.inner_text("#heads-told")


@pytest.mark.browser
def test_two_heads_on_one_token(seen, maps) -> None:
    seen.select_option("#heads-head", "7")
    seen.select_option("#heads-other", "13")
    seen.locator("#heads-queries > span").nth(20).click()
    layer = maps.layers[2]
    row = layer.rows.tolist().index(20)
    first = float(read_byte(layer.first[1, row]))
    share = seen.inner_text("#heads-beside-list .first .share")
    assert share == (f"{first:.0%}" if first >= 0.0995 else f"{first:.1%}")
    assert seen.inner_text("#heads-beside-told") == "L2H1"
    assert seen.locator("#heads-queries span.beside").count() == int((layer.weights[1, row] > 0).sum())
    seen.select_option("#heads-other", "")
    assert not seen.locator("#heads-beside").is_visible()
    assert seen.locator("#heads-queries span.beside").count() == 0


def test_maps_get_what_the_rest_of_a_page_leaves() -> None:
    """5 MiB less what stands beside them and the view of the maps; base64 writes 4 characters for 3 bytes."""
    assert PAGE_BYTES == 5 * 1024 * 1024
    for beside in (100_000, 1_500_000, 3_000_000):
        shape = fit(270, beside_bytes=beside)
        grid = shape.blocks + shape.blocks * (shape.blocks + 1) // 2
        written = 270 * -(-4 * (grid + shape.rows * (1 + 3 * shape.keys)) // 3)
        assert beside + written < 5 * 1024 * 1024
    assert fit(270, beside_bytes=100_000).rows > fit(270, beside_bytes=3_000_000).rows
