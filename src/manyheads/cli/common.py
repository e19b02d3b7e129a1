"""What the verbs share: the model that is named, and where results and progress go."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

from manyheads.errors import BackendError, ManyheadsError
from manyheads.quoting import one_line

if TYPE_CHECKING:
    from manyheads.report import Report

__all__ = [
    "LONGEST_LINE",
    "UsageError",
    "emit",
    "ending",
    "flush_stdout",
    "in_options",
    "missing_package",
    "nearest",
    "need",
    "progress",
    "timed",
    "write_stdout",
]

_SENTENCES = frozenset({"bos", "change", "note", "notes", "reason", "why"})  # keys of what is said to a person
LONGEST_LINE = 1000
"""Characters of a line on stderr."""

_MODELS_EXTRA = frozenset(
    {
        "accelerate",
        "einops",
        "gguf",
        "huggingface_hub",
        "jinja2",
        "numpy",
        "safetensors",
        "tokenizers",
        "torch",
        "transformers",
    }
)
_HOW_TO_GET = "pip install 'manyheads[models]' brings it (in a clone: pip install -c constraints.txt -e '.[models]')"


class UsageError(ManyheadsError):
    """A command line that cannot be understood."""


def ending(output: str | None) -> str:
    """What the name of an output file ends with: "html" for a page."""
    return str(output or "").rpartition(".")[2].lower()


def emit(report: Report, options: argparse.Namespace) -> None:
    """Prints a report, or writes it to the file of --output; as JSON with --json, as text otherwise."""
    report = in_options(report, options)
    output: str | None = getattr(options, "output", None)
    if output is not None:
        from manyheads.report.files import write_whole

        write_whole(output, _content(report, options))
        progress(f"wrote {output}")
    elif getattr(options, "json", False):
        write_stdout(_content(report, options))
    else:
        from manyheads.report.text import render

        _guarded(lambda stdout: render(report, file=stdout))


def in_options(report: Report, options: argparse.Namespace, *, cells: bool = False) -> Report:
    """`report` with what it says of parameters said of the verb's options: its notes, and such sentences in its data.

    `cells`: in the tables too, where these hold no words of a text that was read.
    """
    say = options.spoken
    tables = tuple(
        replace(
            table, question=say(table.question), notes=tuple(map(say, table.notes)),
            rows=tuple(tuple(map(say, row)) for row in table.rows) if cells else table.rows,
        )
        for table in report.tables
    )  # fmt: skip
    return replace(report, tables=tables, notes=tuple(map(say, report.notes)), data=_said(report.data, say))


def _said(data: Any, say: Callable[[str], str], key: str = "") -> Any:
    if isinstance(data, Mapping):
        return {name: _said(value, say, name) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_said(value, say, key) for value in data]
    return say(data) if isinstance(data, str) and key in _SENTENCES else data


def _content(report: Report, options: argparse.Namespace) -> str:
    if getattr(options, "json", False):
        from manyheads.report.jsonform import dumps

        return dumps(report)
    from manyheads.report.text import as_text

    return as_text(report)


def write_stdout(text: str) -> None:
    """Writes to stdout; a full disk is a ManyheadsError, a reader that went away is left to `main`."""
    _guarded(lambda stdout: stdout.write(text))


def flush_stdout() -> None:
    """Flushes stdout, with the errors of `write_stdout`."""
    _guarded(lambda stdout: stdout.flush())


def _guarded(write: Callable[[TextIO], object]) -> None:
    if sys.stdout is None:  # closed by whoever started us
        return
    try:
        write(sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ManyheadsError(f"cannot write the result to standard output: {error.strerror or error}") from error


def progress(text: str) -> None:
    """One line on stderr about what is going on; results never go there."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):  # what nobody can read is no reason to end the work
            print(one_line(text, LONGEST_LINE), file=sys.stderr, flush=True)


def timed(options: argparse.Namespace) -> Callable[[str], None]:
    """`progress` that says how many seconds have gone by since now, and speaks of the verb's options."""
    began = time.perf_counter()
    return lambda text: progress(f"{time.perf_counter() - began:.1f} s: {options.spoken(text)}")


def nearest(word: str, known: Iterable[str]) -> str:
    """ "; did you mean X?" for the known word most like `word`, or nothing."""
    import difflib

    close = difflib.get_close_matches(word[:40], list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def need(package: str, *, to: str) -> None:
    """Refuses early, with the command that brings it, when a package of the extra `models` is not installed."""
    import importlib.util

    if importlib.util.find_spec(package) is None:
        raise BackendError(f"{package} is needed to {to}; {_HOW_TO_GET}")


def missing_package(error: ModuleNotFoundError) -> str | None:
    """What to say when an import failed for want of an optional package; None when it is another module."""
    package = (error.name or "").partition(".")[0]
    if package == "rich":
        return "rich is not installed, and text output needs it: pip install rich (or ask for --json)"
    if package in _MODELS_EXTRA:
        return f"{package} is needed for this and is not installed; {_HOW_TO_GET}"
    return None
