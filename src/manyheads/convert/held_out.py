"""The text that a conversion is judged on: halves of the calibration texts that nothing was fitted on, and a foreign one."""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from torch import Tensor

from manyheads.convert.calibration_text import calibration_windows, split_blocks
from manyheads.convert.record import TextKind
from manyheads.errors import ManyheadsError
from manyheads.models.load.text import Reading

__all__ = ["HeldOut", "held_out", "source_code"]

SOURCE_CODE = "stdlib-code"
"""The name of the text that `source_code` makes."""

_MOST_CHARACTERS = 1 << 19


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Windows of one text. `scored_from`: the first position that counts; `kind`: whether its like was calibrated on."""

    text: str
    kind: TextKind
    sha256: str
    windows: tuple[Tensor, ...]
    scored_from: int = 1


@cache
def source_code() -> Reading:
    """Code of Python's standard library without its docstrings and comments: nothing like it is calibrated on by default."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found: list[str] = []
    size = 0
    for path in sorted(folder.glob("*.py")):
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [each for each in body if not _is_text(each)] or [ast.Pass()]  # type: ignore[attr-defined]
        found.append(ast.unparse(tree))
        size += len(found[-1])
        if size > _MOST_CHARACTERS:
            break
    if not found:
        raise ManyheadsError(f"no source code in {folder}: expected the files of Python's standard library")
    text = "\n".join(found)
    return Reading(SOURCE_CODE, text, hashlib.sha256(text.encode()).hexdigest(), shipped=False)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def held_out(
    tokenizer: Any, texts: Sequence[Reading], *, windows: int, length: int, most_tokens: int, special_tokens: bool
) -> tuple[HeldOut, ...]:
    """`windows` windows of `length` tokens of the held-out half of each text and of foreign code, and of the first long
    text some of twice the length, scored behind the calibrated one.

    most_tokens   that the model reads; 0: any number
    """
    found = []
    beyond: HeldOut | None = None
    for reading in texts:
        half = split_blocks(reading, "held-out")
        found.append(
            _of(tokenizer, half, reading, "like the calibration text", windows, length, special_tokens=special_tokens)
        )
        longer = 2 * length
        if beyond is None and not special_tokens and (not most_tokens or longer <= most_tokens):
            few = max(windows // 2, 1)
            long = _of(tokenizer, half, reading, "like the calibration text", few, longer, special_tokens=False)
            whole = tuple(window for window in long.windows if len(window) == longer)
            beyond = replace(long, windows=whole, scored_from=length) if whole else None
    code = source_code()
    found.append(_of(tokenizer, code, code, "foreign", windows, length, special_tokens=special_tokens))
    return (*found, beyond) if beyond is not None else tuple(found)


def _of(
    tokenizer: Any, half: Reading, whole: Reading, kind: TextKind, windows: int, length: int, *, special_tokens: bool
) -> HeldOut:  # fmt: skip
    cut = calibration_windows(tokenizer, [half], windows=windows, length=length, special_tokens=special_tokens)
    return HeldOut(whole.name, kind, whole.sha256, cut.windows)
