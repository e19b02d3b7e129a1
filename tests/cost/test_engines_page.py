"""docs/engines.md says what the code does."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_code():
    page = runpy.run_path(str(ROOT / "benchmarks" / "engines_page.py"))["page"]()
    assert (ROOT / "docs" / "engines.md").read_text(encoding="utf-8") == page, (
        "run benchmarks/engines_page.py > docs/engines.md"
    )
