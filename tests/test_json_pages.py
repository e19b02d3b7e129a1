"""docs/*-json.md say what the records say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_pages_are_made_from_the_code() -> None:
    pytest.importorskip("torch")
    made = runpy.run_path(str(ROOT / "benchmarks" / "json_pages.py"))
    for page in made["PAGES"]:
        text = (ROOT / "docs" / page.file).read_text(encoding="utf-8")
        assert text == made["page"](page), "run benchmarks/json_pages.py"
