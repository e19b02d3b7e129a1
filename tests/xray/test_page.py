"""What the page of an x-ray says first of heads, made of the object alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")

from manyheads.checkpoints import open_model
from manyheads.heads.left_out import NotMeasured
from manyheads.models.load.text import shipped_text
from manyheads.xray.heads_record import HeadsFound, Removable, RemovableHeads, RolesFound
from manyheads.xray.page import LEAD, page
from manyheads.xray.record import XRay
from manyheads.xray.run import Request, xray
from support import tiny_models

LABELS = {
    "0:0": "induction",
    "0:1": "first token",
    "1:0": "first token",
    "1:1": "",
    "2:0": "delimiter",
    "2:1": "itself",
}
NO = NotMeasured("no text could be read")


def counted(*heads: int) -> Removable:
    rows = (RemovableHeads("all", "zero", n, n, n, beyond=False, total=6, counts=(), losses=()) for n in heads)
    return Removable("", 0.01, tuple(rows))


def labelled(labels: dict[str, str]) -> RolesFound:
    return RolesFound("", 0.05, 0.1, 9, "", 8, 16, (), (), (), labels)


@pytest.fixture(scope="module")
def bare(tmp_path_factory) -> XRay:
    """An x-ray without heads."""
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("models") / "llama")
    return xray(Request(open_model(folder), shipped_text(), tokens=64, threads=1, heads=None))


def shown(bare: XRay, **heads: Any) -> str:
    parts: dict[str, Any] = {
        "roles": NO,
        "importance": NO,
        "removable": Removable(NO.reason),
        "maps": NO,
        "seconds": 0.0,
    }
    return page(dataclasses.replace(bare, heads=HeadsFound(**(parts | heads))))


def test_the_first_lines_say_how_many_heads_do_something_and_how_many_can_go(bare) -> None:
    text = shown(bare, roles=labelled(LABELS), removable=counted(2, 1, 2, 4))
    assert (
        "Heads: 3 of 6 have a role beside the sink (first token); 1 to 4 of 6 can go together for 1% more loss" in text
    )
    assert (
        '<dt>Heads with a role</dt>\n<dd class="figure">3 of 6</dd>\n<dd class="words">first token not counted</dd>'
        in text
    )


def test_one_number_is_no_range(bare) -> None:
    text = shown(bare, removable=counted(2, 2))
    assert "Heads: 2 of 6 can go together for 1% more loss" in text
    assert "Heads with a role" not in text


def test_where_nothing_was_found_nothing_is_said(bare) -> None:
    for text in (page(bare), shown(bare)):
        assert "Heads: " not in text
        assert "Heads with a role" not in text


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> str:
    """A page with everything on it."""
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("models") / "llama")
    return page(xray(Request(open_model(folder), shipped_text(), tokens=200, threads=1)))


def test_the_page_leads_with_the_heads_and_the_price_comes_after_them(whole) -> None:
    places = [
        whole.index(part)
        for part in (
            f">{LEAD}</h2>", 'class="heads-grid"', 'id="heads-view"', "<nav", ">What does each head do?</h2>",
            ">How many heads can go for 1% more loss?</h2>", ">What must the cache hold, in bf16?</h2>", ">What is it?</h2>",
            ">How was this measured?</h2>",
        )
    ]  # fmt: skip
    assert places == sorted(places)


def test_without_heads_no_section_leads(bare) -> None:
    text = page(bare)
    assert LEAD not in text
    assert text.index("<nav") < text.index(">What is its attention?</h2>")


PLACES = """() => {
  const box = (one) => { const { left, top, right, width } = one.getBoundingClientRect(); return { left, top, right, width }; };
  const all = (query) => [...document.querySelectorAll(query)].map(box);
  return { page: document.documentElement.scrollWidth, main: all("main")[0], grids: all(".heads-grid"), text: all("#heads-queries")[0],
    read: all(".heads-read")[0], nav: all("nav")[0], sections: all(".sections > section") };
}"""


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1600, 1400, 1200, 1000, 390])
def test_it_uses_the_width_of_the_screen(browser, tmp_path, whole, width: int, scheme: str) -> None:
    path = tmp_path / "xray.html"
    path.write_text(whole, encoding="utf-8")
    seen = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    complaints: list[str] = []
    seen.on("pageerror", lambda error: complaints.append(str(error)))
    seen.goto(path.as_uri())
    at = seen.evaluate(PLACES)
    seen.close()
    assert complaints == []
    assert at["page"] <= width
    first, second = at["grids"]
    assert first["top"] < at["text"]["top"] < at["nav"]["top"] < min(section["top"] for section in at["sections"])
    columns = {round(section["left"]) for section in at["sections"]}
    if width >= 1200:
        assert at["main"]["width"] > 0.95 * width
        assert (len(columns), first["top"]) == (2, second["top"])
        assert at["read"]["left"] > at["text"]["right"]
    else:
        assert (len(columns), first["left"]) == (1, second["left"])
        assert at["main"]["width"] <= 896
