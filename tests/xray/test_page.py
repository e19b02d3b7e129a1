"""What the page of an x-ray says first of heads, made of the object alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("jinja2")

from manyheads.checkpoints import open_model
from manyheads.models.load.text import shipped_text
from manyheads.xray.page import page
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
NO = {"reason": "no text could be read"}


def counted(*heads: int) -> dict[str, Any]:
    return {"reason": "", "share": 0.01, "texts": [{"heads": count, "total": 6} for count in heads]}


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """A report without heads."""
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("models") / "llama")
    return xray(Request(open_model(folder), shipped_text(), tokens=64, threads=1))


def shown(bare, **heads: Any) -> str:
    parts = {"roles": NO, "removable": NO} | heads
    return page(dataclasses.replace(bare, data={**bare.data, "heads": parts}))


def test_the_first_lines_say_how_many_heads_do_something_and_how_many_can_go(bare) -> None:
    text = shown(bare, roles={"reason": "", "labels": LABELS}, removable=counted(2, 1, 2, 4))
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
