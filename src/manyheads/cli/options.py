"""Every option that several verbs take, declared once: its spelling, how it is read, and the parameter that it stands for.

A verb adds what it takes, `add(parser, CONTEXT)`, and says only what is its own: a default, another word of help. What one
verb alone takes is declared there, in the same way.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Literal

from manyheads.cli import quantities
from manyheads.errors import ManyheadsError
from manyheads.quoting import shown
from manyheads.record import record

__all__ = [
    "ASSUME",
    "BATCH",
    "BOS",
    "CONLLU",
    "CONTEXT",
    "DEBUG",
    "DEVICE",
    "DTYPE",
    "DTYPES",
    "IMPORTANCE",
    "IMPORTANCES",
    "JSON",
    "KV_DTYPE",
    "LEAST_EFFECT",
    "OUTPUT",
    "REVISION",
    "SEED",
    "TEXT",
    "THREADS",
    "TOKENS",
    "Option",
    "add",
    "add_model",
    "declared",
    "renamed",
    "spoken",
    "suggestion",
]

DTYPES = ("fp32", "bf16", "fp16")
IMPORTANCES = ("first-order", "zero", "mean", "resample")


@record
class Option:
    """An option.

    flag       its spelling; old: earlier ones, which still work and say the new one
    metavar    of its value, "" for a switch
    read       makes a value of the text, and refuses with what the text "is not"
    default    as it would be typed
    kind       value | many (may be given again) | switch | either (with a --no- form)
    parameter  what functions of the library call it, where that is not the flag's own name
    tried      other programs' names of it, which are answered with this one
    """

    flag: str
    help: str
    metavar: str = ""
    read: Callable[[str], Any] | None = None
    default: Any = None
    kind: Literal["value", "many", "switch", "either"] = "value"
    choices: tuple[str, ...] = ()
    parameter: str = ""
    old: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()

    def value(self, text: str) -> Any:
        """The value that `text` writes; ManyheadsError, one line that names the option, where it writes none."""
        assert self.read is not None
        try:
            return self.read(text)
        except ManyheadsError as error:
            raise ManyheadsError(f"{self.flag} {shown(text)} {error}") from None


REVISION = Option("--revision", "branch, tag or commit of a hub id", "REV", tried=("--branch", "--commit", "--tag"))
ASSUME = Option(
    "--assume", "full: take a config with fields not understood as full attention", "full", default=""
)  # fmt: skip
CONTEXT = Option(
    "--context", "tokens: 128000, 128k (= 131,072), 1M; several with commas", "N",
    quantities.several(quantities.tokens()), parameter="context_tokens", old=("--contexts",),
    tried=("--ctx", "--context-length", "--max-model-len", "--max-len", "--seq-len", "--ctx-size"),
)  # fmt: skip
BATCH = Option(
    "--batch", "sequences at once (default %(default)s)", "N", quantities.count(), "1",
    tried=("--batch-size", "--bs", "--sequences", "--max-num-seqs"),
)  # fmt: skip
KV_DTYPE = Option(
    "--kv-dtype", "format of the cache", "TYPE", old=("--cache-dtype",),
    tried=("--kv", "--kv-cache-dtype", "--cache-type", "--cache-type-k", "--kv-quant"),
)  # fmt: skip
TEXT = Option(
    "--text", "text to read, UTF-8 (default: a text of our own)", "FILE", default="", tried=("--file", "--prompt")
)
TOKENS = Option(
    "--tokens", "read the first N tokens of it (default %(default)s)", "N", quantities.tokens(least=2), "8192"
)
BOS = Option(
    "--bos", "a beginning-of-text token before each window, or none (default: as the tokenizer does)", kind="either"
)
CONLLU = Option("--conllu", "annotated sentences (CoNLL-U), for the syntactic roles", "FILE", default="")
LEAST_EFFECT = Option(
    "--least-effect", "a role must be so far above its control, beside being significant (default %(default)s)",
    "SHARE", quantities.share, "0.1",
)  # fmt: skip
IMPORTANCE = Option(
    "--importance", "first-order, zero, mean or resample (default %(default)s)", "METHOD",
    quantities.one_of(*IMPORTANCES), IMPORTANCES[0], parameter="method", old=("--by",),
)  # fmt: skip
DTYPE = Option(
    "--dtype", "run in fp32, bf16 or fp16 (default %(default)s)", "TYPE", quantities.dtype(*DTYPES),
    "fp32", tried=("--precision", "--torch-dtype", "--quant", "--quantization"),
)  # fmt: skip
DEVICE = Option(
    "--device", "where torch runs it: cpu, cuda, mps (default %(default)s)", "NAME", default="cpu",
    tried=("--gpu", "--cuda", "--hardware"),
)  # fmt: skip
THREADS = Option(
    "--threads", "threads of torch (default: one for each free core)", "N", quantities.count(1024),
    tried=("--cpus", "--cores", "--num-threads", "-t"),
)  # fmt: skip
SEED = Option(
    "--seed", "everything random follows from it (default %(default)s)", "N", quantities.seed, 0,
    tried=("--random-seed",),
)  # fmt: skip
JSON = Option("--json", "print one JSON object instead of text", kind="switch", tried=("--format",))
OUTPUT = Option(
    "--output",
    "write the result to FILE instead of printing it",
    "FILE",
    tried=("--out", "--output-file", "-o", "--save"),
)
DEBUG = Option("--debug", "show the traceback of an error", kind="switch", tried=("--verbose", "--traceback", "-v"))


def add(parser: argparse._ActionsContainer, option: Option, **own: Any) -> None:
    """Lets `parser` take `option`, with what is this verb's `own` in place of what was declared."""
    option = replace(option, **own) if own else option
    settings: dict[str, Any] = {"help": option.help, "default": option.default}
    if option.kind == "switch":
        settings |= {"action": "store_true", "default": False}
    elif option.kind == "either":
        settings |= {"action": argparse.BooleanOptionalAction}
    else:
        settings |= {"metavar": option.metavar or None, "choices": option.choices or None}
        settings |= {"type": option.value} if option.read else {}
        settings |= {"action": "append", "default": []} if option.kind == "many" else {}
    parser.add_argument(option.flag, **settings).option = option  # type: ignore[attr-defined]


def add_model(parser: argparse.ArgumentParser, *, runs: bool = False) -> None:
    """The one positional argument of every verb about a model, and how a config that is not understood is taken.

    `runs`: the verb needs weights, and takes the demo model where none is named.
    """
    if runs:
        parser.add_argument(
            "model", metavar="MODEL", nargs="?", default="",
            help="folder with config.json and .safetensors, .gguf file, hub id, or demo, the demo model (default)",
        )  # fmt: skip
    else:
        parser.add_argument(
            "model", metavar="MODEL",
            help="folder, config.json, .safetensors, .gguf, hub id, census name, spec in words, or demo",
        )  # fmt: skip
    add(parser, REVISION)
    add(parser, ASSUME)


def declared(parser: argparse.ArgumentParser) -> list[Option]:
    """The options that `parser` takes."""
    return [action.option for action in parser._actions if hasattr(action, "option")]


def renamed(words: Iterable[str], options: Iterable[Option]) -> tuple[list[str], list[str]]:
    """`words` with the options as they are spelled today, and a sentence for each that was spelled otherwise."""
    now = {old: option.flag for option in options for old in option.old}
    out, said = [], []
    rest = False
    for word in words:
        name, equals, value = word.partition("=")
        rest = rest or word == "--"
        if name in now and not rest:
            said.append(f"{name} is called {now[name]} now")
            out.append(f"{now[name]}{equals}{value}")
        else:
            out.append(word)
    return out, list(dict.fromkeys(said))


def suggestion(name: str, options: Iterable[Option]) -> str | None:
    """The flag of the option that other programs call `name`."""
    return next((option.flag for option in options if name in option.tried), None)


def spoken(text: str, options: Iterable[Option]) -> str:
    """What the library says of its parameters, said of the options that stand for them: budget='9' becomes --budget '9'."""
    named = {option.parameter or option.flag.lstrip("-").replace("-", "_"): option for option in options}
    if not any(f"{name}=" in text for name in named):
        return text

    def said(found: re.Match[str]) -> str:
        option, value = named[found[1]], found[2]
        if option.kind in ("switch", "either") and value in ("True", "False"):
            return option.flag if value == "True" else f"--no-{option.flag[2:]}"
        if value[:1] == '"' and " " not in value:
            value = value[1:-1]
        return f"{option.flag} {value}".rstrip()

    return re.sub(rf"""(?<![\w.'"-])({"|".join(named)})=({_VALUE})""", said, text)


_VALUE = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s;:,)'"]*"""
