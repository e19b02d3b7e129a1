"""The command `manyheads VERB ...`.

A verb is a module of this package with the verb's name, imported only when the verb is typed, and holding

    configure(parser: argparse.ArgumentParser) -> None     adds the verb's arguments
    run(options: argparse.Namespace) -> int                does it; the exit status: 0 done, 1 the answer is no

What goes wrong is one line on stderr: a ManyheadsError, a wrong argument, a missing package, what the system refuses or
memory that ran out exits 2, as does a bug of ours, which says so. `--debug` anywhere after the verb shows the traceback. A
signal to end exits with 128 and its number, after tidying up.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import functools
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from manyheads.cli.common import (
    LONGEST_LINE,
    UsageError,
    flush_stdout,
    missing_package,
    nearest,
    progress,
    write_stdout,
)
from manyheads.cli.options import DEBUG, add, declared, renamed, spoken, suggestion
from manyheads.cli.stopping import Stopped, stopped_by_signals
from manyheads.errors import ManyheadsError
from manyheads.quoting import cut, one_line, shown, shown_name, shown_path

__all__ = ["VERBS", "build_parser", "main"]

VERBS = {
    "cost": "the price of a model: parameters, cache, bytes and time, and what other heads would cost",
    "xray": "a real model run on real text, and the predicted price checked against what it holds",
    "prune": "heads removed for real: by hand, by a budget or by gates; what that saves and loses",
    "convert": "fewer key/value heads: what that saves and loses, and a model that stock software loads",
    "explain": "which path attention would take on a CPU, layer by layer, and why",
    "heads": "where each head of a model looks, what its role is, and how much it matters",
    "models": "the census of known models: list, filter, sort",
    "check": "our suites turned on your own attention function",
    "bench": "attention timed on this machine, against its memory and against what else is installed",
    "facts": "every cited number, its verdict, source and arithmetic",
}
"""Each verb and what it does, in the order of the help; the verb's module is `manyheads.cli.VERB`."""

TOUR = (
    ("serving a model", "manyheads cost llama-2-70b --context 128k --memory 80GiB"),
    ("sketching one", 'manyheads cost "gqa(4096, 32/8x128) x 32" --what-if mqa'),
    ("asking what heads do", "manyheads xray"),
    ("long prompts, no GPU", "manyheads cost llama-3.2-1b --context 32k --kv-dtype q8_0"),
    ("interview on Monday", "manyheads facts softmax"),
)
"""One line for each kind of person the tool is for: what brings them, and a command to type now."""

_INTERRUPTED = 130  # 128 + SIGINT and 128 + SIGPIPE, as a shell reports a program that these signals ended
_PIPE_CLOSED = 141
_LONGEST_QUOTED = 400


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are one line, raised as UsageError."""

    def error(self, message: str) -> None:  # type: ignore[override]
        hint = _suggestion_of_choice(message) if "invalid choice: " in message else ""
        said = f"{cut(message, _LONGEST_QUOTED)}{hint}"  # argparse quotes a word however long it is
        raise UsageError(f"{self.prog.removeprefix('manyheads ')}: {said} ({self.prog} --help says what is valid)")

    def _print_message(self, message: str, file: Any = None) -> None:
        # argparse drops what the system says of a full disk.
        if file is None or file is sys.stdout:
            write_stdout(message)
        else:
            super()._print_message(message, file)

    def _get_value(self, action: argparse.Action, arg_string: str) -> object:
        # argparse takes any ValueError of a `type` function, ours too, for "invalid value" and drops its message.
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, ManyheadsError):
                raise UsageError(str(error.__context__)) from None
            raise

    def parse_all(self, words: Sequence[str]) -> argparse.Namespace:
        """The options in `words`; a word that nothing takes is a UsageError naming the nearest option.

        Beside the options: `typed`, the command without --json and --debug; `spoken`, which says of options what is said of
        parameters.
        """
        mine = declared(self)
        import shlex

        words, said = renamed(words, mine)
        for line in said:
            progress(f"{self.prog}: {line}")
        options, left = self.parse_known_args(words)
        options.typed = shlex.join([*self.prog.split(), *(word for word in words if word not in ("--json", "--debug"))])
        options.spoken = functools.partial(spoken, options=mine)
        if not left:
            return options
        known = [flag for action in self._actions for flag in action.option_strings]
        unknown = next((word for word in left if word.startswith("-")), left[0])
        if unknown.startswith("-"):
            name = unknown.split("=", 1)[0]
            meant = suggestion(name, mine)
            hint = f"; {meant} is the option for that here" if meant else nearest(name, known)
            self.error(f"there is no option {shown_name(name)}{hint}")
        self.error(f"nothing takes the word {shown(unknown)} (quote a description that has spaces in it)")
        raise AssertionError("unreachable: error raises")


def _suggestion_of_choice(message: str) -> str:
    wrong, _, valid = message.partition("invalid choice: ")[2].partition(" (choose from ")
    return nearest(wrong.strip("'"), [choice.strip("' ") for choice in valid.rstrip(")").split(",")])


def build_parser(verb: str) -> _Parser:
    """The parser of one verb, its module imported and asked for the arguments."""
    module = importlib.import_module(f"manyheads.cli.{verb}")
    parser = _Parser(
        prog=f"manyheads {verb}",
        description=f"{VERBS[verb][0].upper()}{VERBS[verb][1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.configure(parser)
    add(parser, DEBUG)
    parser.set_defaults(run=module.run)
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Runs the command line (`words`, by default this process's own) and returns its exit status."""
    words = list(sys.argv[1:] if words is None else words)
    _survive_narrow_encodings()
    try:
        with stopped_by_signals():
            status = _dispatch(words)
            flush_stdout()
        return status
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Stopped as stopped:
        return 128 + stopped.number
    except BrokenPipeError:
        _abandon_stdout()
        return _PIPE_CLOSED
    except Exception as error:  # noqa: BLE001 the last door: a person sees one line, never a traceback
        return _complain(_message(error, words), words)
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of libraries in Rust: no Exception in Python
            raise
        return _complain(f"a library that reads a file of the model broke: {error}", words)


def _dispatch(words: list[str]) -> int:
    while words and words[0] == "--debug":
        words = [*words[1:], "--debug"] if len(words) > 1 else []
    if not words:
        write_stdout(f"{_tour()}\n")
        return 0
    first, rest = words[0], words[1:]
    if first in ("-h", "--help"):
        write_stdout(f"{_help()}\n")
        return 0
    if first == "--version":
        from manyheads import __version__

        write_stdout(f"manyheads {__version__}\n")
        return 0
    if first not in VERBS:
        kind = "an option" if first.startswith("-") else "a verb"
        raise UsageError(
            f"{shown(first)} is not {kind} of manyheads{nearest(first, [*VERBS, '--help', '--version'])}; "
            f"the verbs are {', '.join(VERBS)} (manyheads --help)"
        )
    parser = build_parser(first)
    try:
        options = parser.parse_all(rest)
        return int(options.run(options))
    except UsageError:
        raise
    except ManyheadsError as error:
        error.args = (spoken(str(error), declared(parser)),)
        raise
    except SystemExit as stop:  # argparse ends --help this way
        return int(stop.code or 0)


def _tour() -> str:
    width = max(len(who) for who, _ in TOUR)
    return "\n".join(f"{who:<{width}}   {command}" for who, command in TOUR)


def _help() -> str:
    verbs = "\n".join(f"  {verb:<8} {does}" for verb, does in VERBS.items())
    return (
        "Price the attention heads of real models, see what they do, and learn how it all works.\n\n"
        f"usage: manyheads VERB ...\n\n{verbs}\n\n"
        "  manyheads VERB --help     the arguments of a verb\n"
        "  manyheads --version       the version\n\n"
        f"For a start:\n\n{_tour()}\n\n"
        "Results go to stdout, progress to stderr. Exit status: 0 done, 1 the answer is no,\n"
        "2 the request or the input is wrong (one line says what was found and what would be valid)."
    )


def _complain(message: str, words: list[str]) -> int:
    """One line on stderr, after the traceback where --debug asks for it; the exit status 2."""
    if "--debug" in words:
        import traceback

        traceback.print_exc()
    _abandon_stdout_if_unusable()
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(one_line(f"manyheads: {message}", LONGEST_LINE), file=sys.stderr, flush=True)
    return 2


def _message(error: Exception, words: list[str]) -> str:
    """What went wrong, in one line: ours, the system's, or a bug."""
    if isinstance(error, ManyheadsError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return missing_package(error) or _our_bug(error, words)
    if _is_memory(error):
        said = f" ({cut(str(error), _LONGEST_QUOTED)})" if str(error) else ""
        return f"memory ran out{said}; a smaller model, a shorter text or a machine with more memory would do"
    if isinstance(error, OSError):
        return _of_the_system(error)
    return _our_bug(error, words)


def _is_memory(error: Exception) -> bool:
    """Whether there was no memory: torch says so in errors of its own."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _of_the_system(error: OSError) -> str:
    """What the system refused, and of which file."""
    try:
        os.getcwd()
    except OSError:
        return "the current folder is not there any more; valid: another one (cd)"
    of = f": {shown_path(error.filename)}" if isinstance(error.filename, str) else ""
    return f"the system refuses: {error.strerror or error}{of}"


def _our_bug(error: Exception, words: list[str]) -> str:
    advice = "" if "--debug" in words else "; run it again with --debug for the traceback"
    return f"this is a bug in manyheads, not in what was asked: {type(error).__name__}: {error}{advice}"


def _survive_narrow_encodings() -> None:
    """A character that the terminal cannot show is escaped instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # absent where a test or a notebook replaced the stream
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _abandon_stdout_if_unusable() -> None:
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        _abandon_stdout()


def _abandon_stdout() -> None:
    """Points stdout at nothing, or Python's own flush at exit would fail again and say so."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        sys.stdout = None
