"""A figure in prose may name the entry it comes from, as [facts: A38] or [facts: A38, F6]: each must exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from manyheads.facts.finding import is_key_like
from manyheads.facts.library import entries

ROOT = Path(__file__).parents[2]
REFERENCE = re.compile(r"\[facts?: ([^\]\n]+)\]", re.IGNORECASE)
PROSE = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.html"), *ROOT.glob("src/**/*.py")]


def unknown_references(text: str) -> list[str]:
    known = {each.key for each in entries()}
    named = [key.strip() for found in REFERENCE.findall(text) for key in found.split(",")]
    return [key for key in named if key not in known]


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("38.1 BLEU [facts: A37] did not win [facts: A38, vaswani-results].", []),
        ("See [facts: A99] and [fact: F6].", ["A99"]),
        ("See [facts: A38,B99, nothing].", ["B99", "nothing"]),
        ("No reference, [a link](facts: A99), `facts: A99`.", []),
    ],
)
def test_unknown_keys_are_noticed(text: str, unknown: list[str]) -> None:
    assert unknown_references(text) == unknown


@pytest.mark.parametrize("path", PROSE, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_reference_in_prose_exists(path: Path) -> None:
    assert unknown_references(path.read_text(encoding="utf-8")) == []


def test_entries_name_only_entries_that_exist() -> None:
    """Keys inside the library's own texts: 'the figures are in A54'."""
    known = {each.key for each in entries()}
    for each in entries():
        texts = [value for value in vars(each).values() if isinstance(value, str)]
        named = {
            word for text in texts for word in re.findall(r"(?<![\w.-])[ABCFN]\d+(?![\w.-])", text) if is_key_like(word)
        }
        assert named <= known, each.key
