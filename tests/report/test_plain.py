from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from manyheads.report.plain import visible


def test_what_a_terminal_would_obey_is_shown() -> None:
    assert visible("a\x1b[31mred\x07\x9b0m\x7f") == "a\\x1b[31mred\\x07\\x9b0m\\x7f"
    assert visible("llama\u202egnp.exe\u2028") == "llama\\u202egnp.exe\\u2028"
    assert visible("a\tb\nc\rd") == "a\\x09b\\x0ac\\x0dd"
    assert visible("a\nb\rc", keep_lines=True) == "a\nb\\x0dc"


def test_other_text_is_left_alone() -> None:
    assert visible("modèle 注意 2 × 80 µs") == "modèle 注意 2 × 80 µs"


@given(st.text())
def test_nothing_that_moves_the_cursor_is_left(text: str) -> None:
    assert all(character.isprintable() or ord(character) > 0x9F for character in visible(text))
