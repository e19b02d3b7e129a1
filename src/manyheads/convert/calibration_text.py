"""The text that a conversion is calibrated on: windows of tokens of several kinds, never of one alone.

Calibration on one kind of text looks fine on that kind and can be ruinous on any other: by default there are two, the
text that comes with the package and the documentation of Python's own standard library, read from its files.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.models.load.text import Reading, shipped_text
from manyheads.models.load.tokenizing import check_texts, tokenized

__all__ = ["Calibration", "TextPart", "calibration_texts", "calibration_windows", "documentation", "split_blocks"]

DOCUMENTATION = "stdlib-docstrings"
"""The name of the documentation that `documentation` makes."""

_SHORTEST_DOCSTRING = 200  # characters: one-liners are no prose
_MOST_CHARACTERS = 1 << 21
_LEFT_OUT = ("test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib2to3", "pydoc_data")
_DOMINATES = 0.75
_BLOCK_CHARACTERS = 4096
_CHARACTERS_A_TOKEN = 8  # twice what English has, and more than almost any text

Half = Literal["calibration", "held-out"]


@dataclass(frozen=True)
class TextPart:
    """What was read of one text. `windows` and `tokens` count what was taken; `sha256` is that of the whole text."""

    name: str
    kind: str
    sha256: str
    windows: int
    tokens: int


@dataclass(frozen=True, eq=False)
class Calibration:
    """Windows of tokens, in turn of each text. `windows`: (t,) each; `parts`: of which texts; `notes`: what a person should know."""

    windows: tuple[Tensor, ...]
    parts: tuple[TextPart, ...]
    notes: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens of all windows."""
        return sum(window.numel() for window in self.windows)


@cache
def documentation() -> Reading:
    """The docstrings of Python's standard library that are prose, file by file in the order of their names, imported nowhere.

    Which they are depends on the Python that runs: the hash says whether two figures stand on one text.
    """
    folder = Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    characters = 0
    for path in sorted(folder.rglob("*.py")):
        if any(part in _LEFT_OUT for part in path.relative_to(folder).parts):
            continue
        for text in _docstrings(path):
            found.append(text)
            characters += len(text)
        if characters > _MOST_CHARACTERS:
            break
    if not found:
        raise ManyheadsError(f"no documentation in {folder}: expected the files of Python's standard library")
    text = "\n\n".join(dict.fromkeys(found))
    return Reading(DOCUMENTATION, text, hashlib.sha256(text.encode()).hexdigest(), shipped=False)


def _docstrings(path: Path) -> list[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, kinds)]
    return [text for text in texts if text is not None and len(text) >= _SHORTEST_DOCSTRING and ">>>" not in text]


def calibration_texts() -> tuple[Reading, ...]:
    """The two kinds of text that are read where nobody names others."""
    return shipped_text(), documentation()


def split_blocks(reading: Reading, half: Half, *, every: int = 2) -> Reading:
    """One half of a text: of every `every` blocks of about 4,096 characters, cut at line ends, the last is held out.

    The two halves share no character. The calibration half of a text of one block is the whole of it.
    """
    blocks = _blocks(reading.text)
    chosen = [block for number, block in enumerate(blocks) if ((number % every == every - 1) == (half == "held-out"))]
    if not chosen:
        raise ManyheadsError(
            f"{reading.name}: its {len(reading.text):,} characters are one block, so nothing of it can be held out; "
            f"expected more than {_BLOCK_CHARACTERS:,}"
        )
    return replace(reading, text="\n".join(chosen))


def _blocks(text: str) -> list[str]:
    blocks: list[str] = []
    lines: list[str] = []
    size = 0
    for line in text.split("\n"):
        lines.append(line)
        size += len(line) + 1
        if size >= _BLOCK_CHARACTERS:
            blocks.append("\n".join(lines))
            lines, size = [], 0
    if any(lines):
        blocks.append("\n".join(lines))
    return blocks


def calibration_windows(
    tokenizer: Any,
    texts: Sequence[Reading] | None = None,
    *,
    windows: int = 16,
    length: int = 512,
    special_tokens: bool = False,
) -> Calibration:
    """`windows` windows of `length` tokens, as many of each text as there are, spread evenly over it.

    texts           None: `calibration_texts()`
    special_tokens  put what the tokenizer begins and ends a text with around each window, as encoders read them

    A text that is too short for its share gives what it has, and the others take over. ManyheadsError, one line, for
    texts without a single window of two tokens.
    """
    readings = calibration_texts() if texts is None else tuple(texts)
    if tokenizer is None:
        raise ManyheadsError(
            "the model has no tokenizer, so it cannot read a calibration text; valid: give token windows"
        )
    before, behind = _around(tokenizer) if special_tokens else ([], [])
    room = length - len(before) - len(behind)
    if windows < 1 or room < 2:
        raise ManyheadsError(
            f"{windows} windows of {length} tokens: expected at least one window of two tokens of text"
        )
    cut = [_windows(tokenizer, reading, room, most=windows) for reading in readings]
    shares = _shares([len(each) for each in cut], windows)
    chosen = [_spread(each, share) for each, share in zip(cut, shares, strict=True)]
    if not any(chosen):
        named = ", ".join(reading.name for reading in readings) or "no text"
        raise ManyheadsError(f"{named}: no window of at least two tokens to calibrate on")
    parts = tuple(
        TextPart(reading.name, "shipped" if reading.shipped else reading.name, reading.sha256, len(some), sum(map(len, some)))
        for reading, some in zip(readings, chosen, strict=True)
    )  # fmt: skip
    rows = [each[at] for at in range(max(map(len, chosen))) for each in chosen if at < len(each)]
    return Calibration(tuple(torch.tensor([*before, *row, *behind]) for row in rows), parts, _notes(parts))


def _around(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before a text and behind it."""
    bare = list(tokenized(tokenizer, "a", add_special_tokens=False)["input_ids"])
    whole = list(tokenized(tokenizer, "a")["input_ids"])
    at = next((at for at in range(len(whole)) if whole[at : at + len(bare)] == bare), 0)
    return whole[:at], whole[at + len(bare) :]


def _windows(tokenizer: Any, reading: Reading, length: int, *, most: int) -> list[list[int]]:
    """Windows from all over a text: of a long one, each from the beginning of a line in its own part, so that a book is
    not tokenised for them and not judged by its first pages."""
    text, room = reading.text, _CHARACTERS_A_TOKEN * length
    if len(text) <= most * room:
        pieces = [text]
    else:
        starts = [text.find("\n", at * len(text) // most) + 1 for at in range(most)]
        pieces = [text[start : start + room] for start in starts]
    if not reading.shipped:
        check_texts(tokenizer, pieces)
    cut = [list(tokenized(tokenizer, piece, add_special_tokens=False, verbose=False)["input_ids"]) for piece in pieces]
    if len(pieces) > 1:
        return [ids[:length] for ids in cut if len(ids) >= length]
    rows = [cut[0][start : start + length] for start in range(0, len(cut[0]), length)]
    return [row for row in rows if len(row) == length] or [row for row in rows if len(row) >= 2]


def _shares(have: Sequence[int], wanted: int) -> list[int]:
    """How many windows each text gives: equally many, and what one lacks from the others."""
    shares = [0] * len(have)
    while sum(shares) < wanted and any(share < size for share, size in zip(shares, have, strict=True)):
        open_ones = [at for at, size in enumerate(have) if shares[at] < size]
        at = min(open_ones, key=lambda each: shares[each])
        shares[at] += 1
    return shares


def _spread(rows: list[list[int]], count: int) -> list[list[int]]:
    return [rows[at * len(rows) // count] for at in range(count)]


def _notes(parts: Sequence[TextPart]) -> tuple[str, ...]:
    total = sum(part.tokens for part in parts)
    by_kind: dict[str, int] = {}
    for part in parts:
        by_kind[part.kind] = by_kind.get(part.kind, 0) + part.tokens
    kind, most = max(by_kind.items(), key=lambda item: item[1])
    if most <= _DOMINATES * total:
        return ()
    note = (
        f"{most:,} of {total:,} calibration tokens are of one kind ({kind}), and what is fitted on one kind of text can fail "
        "on any other: add texts of other kinds"
    )
    return (note,)
