"""Tokenising with files that nobody vouches for: what they make of a text is tried first, in a process with bounds.

A tokenizer.json is a program: replacements, templates, regular expressions. One can turn a page into gigabytes or end in
a panic of its library's, and neither can be stopped in the process where it happens: it is tried in another one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from manyheads.errors import ManyheadsError
from manyheads.quoting import one_line

__all__ = ["check_texts", "panics_told", "tokenized", "trial"]

MEMORY_BYTES = 2**31  # the largest vocabularies, of 262,144 tokens and their merges, take an eighth of it
SECONDS = 60.0
_MOST_TOKENS = 64  # of a character: bytes are 4 tokens, and compatibility forms have up to 18 characters
_FILE = "tokenizer.json"

# Threads would each reserve memory of their own, which counts as used.
_ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1", "RUST_BACKTRACE": "0"}


def check_texts(tokenizer: Any, texts: Sequence[str]) -> None:
    """Raises ManyheadsError, one line, where the tokenizer.json that `tokenizer` was made of explodes or breaks on `texts`."""
    why = trial(str(getattr(tokenizer, "name_or_path", "")), texts)
    if why:
        raise ManyheadsError(f"the text cannot be tokenised: {why}")


def tokenized(tokenizer: Any, text: str, **options: Any) -> Any:
    """`tokenizer(text, **options)`, where it does not panic."""
    with panics_told(f"the tokenizer breaks on a text of {len(text)} characters"):
        return tokenizer(text, **options)


@contextlib.contextmanager
def panics_told(what: str) -> Iterator[None]:
    """A panic of a library in Rust, which is no Exception in Python, becomes a ManyheadsError that begins with `what`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ManyheadsError(f"{what}: {_said(error)}") from None


def trial(folder: str, texts: Sequence[str]) -> str:
    """Why the tokenizer.json in `folder` cannot be used on `texts`: "" where it can, where there is none, or where no
    process can be started to try it. Where it merely cannot be loaded, whoever loads it says so."""
    if not folder:  # made in memory
        return ""
    path = os.path.join(folder, _FILE)
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return ""
    return _tried(os.path.abspath(path), (found.st_mtime_ns, found.st_size), tuple(texts))


@functools.lru_cache(maxsize=16)
def _tried(path: str, _version: tuple[int, int], texts: tuple[str, ...]) -> str:
    asked = json.dumps({"path": path, "texts": texts, "bytes": MEMORY_BYTES, "most": _MOST_TOKENS})
    paths = os.pathsep.join(each for each in sys.path if each)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from manyheads.models.load.tokenizing import _child; _child()"],
            input=asked, text=True, capture_output=True, timeout=SECONDS, check=False, errors="replace",
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": paths},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"its {_FILE} takes more than {SECONDS:g} s"
    except (OSError, ValueError):
        return ""
    if done.returncode == 0:
        return one_line(done.stdout, 300)
    said = next((line for line in done.stderr.splitlines() if line.strip()), "no word")
    return one_line(f"its {_FILE} takes more than {MEMORY_BYTES:,} bytes, or ends its process ({said})", 300)


def _child() -> None:
    """What the other process does: read a tokenizer and texts, and print why they do not go together."""
    asked = json.load(sys.stdin)
    try:
        import tokenizers
    except ImportError:
        return
    _bound(asked["bytes"])
    try:
        made = tokenizers.Tokenizer.from_file(asked["path"])
    except Exception:  # noqa: BLE001  transformers says why
        return
    try:
        made.no_padding()
        made.no_truncation()
        for text in asked["texts"]:
            for special in (False, True):
                ids = made.encode(text, add_special_tokens=special).ids
                counts = {"tokens": len(ids), "characters": len(made.decode(ids))}
                for what, count in counts.items():
                    if count > asked["most"] * (len(text) + 64):
                        print(f"its {_FILE} makes {count:,} {what} of {len(text):,} characters")  # noqa: T201
                        return
    except Exception:  # noqa: BLE001  letters that it does not know: another text may have none of them
        return
    except BaseException as error:  # noqa: BLE001  a panic
        print(f"its {_FILE} breaks: {_said(error)}")  # noqa: T201


def _bound(size: int) -> None:
    """No more memory than `size` bytes; where the system has no such bound, time alone ends what explodes."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass


def _said(error: BaseException) -> str:
    return one_line(str(error) or type(error).__name__, 200)
