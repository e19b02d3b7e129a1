"""What a conversion reads: several kinds, spread evenly, and halves that share nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers

from manyheads.convert.calibration_text import calibration_texts, calibration_windows, documentation, split_blocks
from manyheads.errors import ManyheadsError
from manyheads.models.load.text import Reading


@pytest.fixture
def tokenizer(tiny: Callable[[str], Path]) -> Any:
    return transformers.AutoTokenizer.from_pretrained(tiny("llama"))


def reading(name: str, text: str) -> Reading:
    return Reading(name, text, hashlib.sha256(text.encode()).hexdigest(), shipped=False)


def numbered(first: int, lines: int) -> str:
    return "\n".join(f"line {number} of a text that says little" for number in range(first, first + lines))


def test_two_kinds_without_being_asked() -> None:
    ours, docs = calibration_texts()
    assert ours.shipped
    assert not docs.shipped
    assert len(docs.text) > 500_000
    assert docs == documentation()


def test_halves_share_no_line_and_lose_none() -> None:
    whole = reading("numbers", numbered(0, 3000))
    left, held = (set(split_blocks(whole, half).text.split("\n")) for half in ("calibration", "held-out"))
    assert not left & held
    assert left | held == set(whole.text.split("\n"))
    assert 0.8 < len(left) / len(held) < 1.25


def test_a_text_of_one_block_has_nothing_to_hold_out() -> None:
    with pytest.raises(ManyheadsError, match="one block"):
        split_blocks(reading("short", "a few words"), "held-out")


def test_windows_come_from_each_text_in_turn(tokenizer: Any) -> None:
    texts = [reading("one", numbered(0, 500)), reading("two", numbered(1000, 500))]
    found = calibration_windows(tokenizer, texts, windows=6, length=32)
    assert [part.windows for part in found.parts] == [3, 3]
    assert [part.sha256 for part in found.parts] == [text.sha256 for text in texts]
    assert found.tokens == 6 * 32
    assert found.notes == ()


def test_what_one_text_lacks_the_others_give_and_a_note_says_so(tokenizer: Any) -> None:
    texts = [reading("short", numbered(0, 5)), reading("long", numbered(1000, 2000))]
    found = calibration_windows(tokenizer, texts, windows=10, length=64)
    assert sum(part.windows for part in found.parts) == 10
    assert "of one kind (long)" in found.notes[0]


def test_windows_as_an_encoder_reads_them(tiny: Callable[[str], Path]) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("bert"))
    room = len(tokenizer("")["input_ids"])
    found = calibration_windows(
        tokenizer, [reading("one", numbered(0, 100))], windows=2, length=16, special_tokens=True
    )
    assert {window.numel() for window in found.windows} == {16}
    assert found.parts[0].tokens == 2 * (16 - room)


@pytest.mark.parametrize(
    ("text", "asked"), [("x", {}), (numbered(0, 99), {"windows": 0}), (numbered(0, 99), {"length": 1})]
)
def test_nothing_to_calibrate_on(tokenizer: Any, text: str, asked: dict[str, int]) -> None:
    with pytest.raises(ManyheadsError, match="window"):
        calibration_windows(tokenizer, [reading("one", text)], **{"windows": 2, "length": 16, **asked})


def test_no_tokenizer() -> None:
    with pytest.raises(ManyheadsError, match="no tokenizer"):
        calibration_windows(None)
