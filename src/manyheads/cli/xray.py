"""`manyheads xray [MODEL]`: a real model on the table. A thin caller of `manyheads.xray.run`, and two files of it."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from manyheads.cli import quantities
from manyheads.cli.common import add_json, add_least_effect, add_seed, emit, need, progress, timed
from manyheads.cli.cost import add_model
from manyheads.cost.dtypes import MODEL_DTYPES, dtype_among
from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.quoting import shown_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyheads.report import Report
    from manyheads.report.html import Widget

__all__ = ["configure", "run"]

JSON_NAME, HTML_NAME = "xray.json", "xray.html"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, runs=True)
    parser.add_argument("--text", metavar="FILE", default="", help="text to read, UTF-8 (default: a text of our own)")
    parser.add_argument("--tokens", metavar="N", default="8192", help="read the first N tokens of it (default 8192)")
    parser.add_argument("--bos", action="store_true", help="put the model's beginning-of-text token before each window")
    parser.add_argument("--context", metavar="N", default="", help="tokens to price: 8k; several with commas")
    parser.add_argument("--dtype", metavar="TYPE", default="fp32", help="run in fp32, bf16 or fp16 (default fp32)")
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="where torch runs it: cpu, cuda, mps (default cpu)"
    )
    parser.add_argument("--threads", metavar="N", default="", help="threads of torch (default: one for each free core)")
    parser.add_argument(
        "--seconds", metavar="N", default="180", help="take heads out for N seconds at most (default 180)"
    )
    parser.add_argument(
        "--exact", action="store_true", help="take every head out on as many windows, however long it takes"
    )
    parser.add_argument(
        "--map-tokens", metavar="N", default="2048", help="show where heads look in N tokens (default 2048)"
    )
    parser.add_argument("--conllu", metavar="FILE", default="", help="sentences with gold heads, for syntactic roles")
    add_least_effect(parser)
    parser.add_argument("--no-heads", action="store_true", help="leave the heads out: cost, parameters, text, cache")
    add_seed(parser)
    add_json(parser)
    parser.add_argument(
        "--output", metavar="FOLDER", default="", help="write xray.html and xray.json to FOLDER (default: here)"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the x-ray and writes its two files; 1 where what was measured is not what was predicted."""
    from manyheads.checkpoints.locate import locate
    from manyheads.heads.roles import read_conllu
    from manyheads.models.load.model import check_runnable, demo_model
    from manyheads.models.load.text import read_text, shipped_text

    say = timed()
    tokens = quantities.positive("--tokens", options.tokens)
    if tokens < 2:
        raise ManyheadsError("--tokens 1: the first token is never scored, so at least 2 are needed")
    threads = quantities.positive("--threads", options.threads, 1024) if options.threads else 0
    seconds = quantities.positive("--seconds", options.seconds, 86_400)
    map_tokens = quantities.positive("--map-tokens", options.map_tokens, 32_768)
    least_effect = quantities.share("--least-effect", options.least_effect)
    contexts = tuple(quantities.contexts(options.context)) if options.context else ()
    options.dtype = dtype_among(options.dtype, MODEL_DTYPES, "--dtype")
    targets = _targets(options.output)
    reading = read_text(options.text) if options.text else shipped_text()
    sentences = read_conllu(options.conllu) if options.conllu else None
    model = options.model or demo_model()
    check_runnable(locate(model))
    for package in ("torch", "transformers", "jinja2"):
        need(package, to="run a model and show it")

    from manyheads.xray.heads import HeadsSection
    from manyheads.xray.run import Request, xray

    request = Request(
        model, reading, revision=options.revision, assume=options.assume, tokens=tokens, contexts=contexts,
        threads=threads, dtype=options.dtype, device=options.device, bos=options.bos, seed=options.seed,
        command=_command(options),
    )  # fmt: skip
    heads = [] if options.no_heads else [HeadsSection(options.exact, seconds, map_tokens, sentences, least_effect)]
    report = xray(request, say=say, sections=heads)
    _write(report, targets, [widget for section in heads for widget in section.widgets(report.data["heads"])])
    options.output = None  # it named a folder for the files; the report itself goes to stdout
    emit(report, options)
    return 0 if report.data["agrees"] else 1


def _targets(folder: str) -> tuple[str, str]:
    """Where the two files go, checked before the work: a file of those names that is no x-ray is not overwritten."""
    if folder and not os.path.isdir(folder):
        kind = "is not a folder" if os.path.lexists(folder) else "does not exist"
        raise ManyheadsError(
            f"--output {shown_path(folder)}: {kind}; valid: a folder that exists, for {HTML_NAME} and {JSON_NAME}"
        )
    if not os.access(folder or os.curdir, os.W_OK | os.X_OK):
        raise ManyheadsError(
            f"cannot write into {shown_path(folder) if folder else 'the current folder'}; --output FOLDER names another"
        )
    from manyheads.report.files import check_target
    from manyheads.report.html import GENERATOR

    for name, sign in ((JSON_NAME, '"schema": "manyheads.xray/'), (HTML_NAME, GENERATOR)):
        path = os.path.join(folder, name)
        check_target(path)
        if os.path.lexists(path) and not _starts_with(path, sign):
            raise ManyheadsError(
                f"{shown_path(path)} is not an earlier x-ray and stays as it is; --output FOLDER names another place"
            )
    return os.path.join(folder, JSON_NAME), os.path.join(folder, HTML_NAME)


def _starts_with(path: str, sign: str) -> bool:
    from manyheads.checkpoints.files import open_regular

    try:
        file, _ = open_regular(path, wanted="an earlier x-ray")
        with file:
            start = file.read(1_000).decode(errors="replace")
    except (OSError, CheckpointError):
        return False
    return sign in start or not start.strip()


def _write(report: Report, targets: tuple[str, str], widgets: Sequence[Widget]) -> None:
    """Both files, or neither."""
    from manyheads.report.files import write_all
    from manyheads.report.jsonform import dumps
    from manyheads.xray.page import page

    json_path, html_path = targets
    html = page(report, widgets=widgets)
    write_all({json_path: dumps(report), html_path: html})
    progress(
        f"wrote {shown_path(html_path)} ({len(html.encode(errors='backslashreplace')) / 1024:,.0f} KiB) and {shown_path(json_path)}"
    )


def _command(options: argparse.Namespace) -> str:
    """The command as it could be typed again: what is not at its default."""
    words = ["manyheads", "xray", *([options.model] if options.model else [])]
    defaults = {
        "tokens": "8192", "dtype": "fp32", "device": "cpu", "seed": 0, "seconds": "180", "map_tokens": "2048",
        "least_effect": "0.1",
    }  # fmt: skip
    for name in (
        "revision",
        "assume",
        "text",
        "tokens",
        "bos",
        "context",
        "dtype",
        "device",
        "threads",
        "seconds",
        "exact",
        "map_tokens",
        "conllu",
        "least_effect",
        "no_heads",
        "seed",
        "output",
    ):
        value = getattr(options, name)
        if value and value != defaults.get(name):
            option = f"--{name.replace('_', '-')}"
            words += [option] if value is True else [option, str(value)]
    return shlex.join(words)
