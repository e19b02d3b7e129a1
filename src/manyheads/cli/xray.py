"""`manyheads xray [MODEL]`: a real model on the table. A thin caller of `manyheads.xray.run`, and two files of it."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from manyheads.cli import options as known
from manyheads.cli import quantities
from manyheads.cli.common import emit, in_options, progress, timed
from manyheads.cli.options import Option, add, add_model
from manyheads.cli.running import open_runnable
from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.quoting import shown_path

if TYPE_CHECKING:
    pass

__all__ = ["configure", "run"]

JSON_NAME, HTML_NAME = "xray.json", "xray.html"


_OWN = (
    known.TEXT,
    known.TOKENS,
    replace(known.BOS, help="put the model's beginning-of-text token before each window (default: no)", default=False),
    replace(known.CONTEXT, help="tokens to price: 8k, 1M; several with commas"),
    known.DTYPE,
    known.DEVICE,
    known.THREADS,
    Option(
        "--seconds", "take heads out for N seconds at most (default %(default)s)", "N", quantities.count(86_400), "180",
        tried=("--timeout", "--time"),
    ),
    Option("--exact", "take every head out on as many windows, however long it takes", kind="switch"),
    Option(
        "--map-tokens", "show where heads look in N tokens (default %(default)s)", "N", quantities.tokens(most=32_768), "2048"
    ),
    known.CONLLU,
    known.LEAST_EFFECT,
    Option("--no-heads", "leave the heads out: cost, parameters, text, cache", kind="switch"),
    known.SEED,
    known.JSON,
    replace(known.OUTPUT, metavar="FOLDER", default="", help="write xray.html and xray.json to FOLDER (default: here)"),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, runs=True)
    for option in _OWN:
        add(parser, option)


def run(options: argparse.Namespace) -> int:
    """Prints the x-ray and writes its two files; 1 where what was measured is not what was predicted."""
    from manyheads.heads.roles import read_conllu
    from manyheads.models.load.text import read_text, shipped_text

    say = timed(options)
    targets = _targets(options.output)
    reading = read_text(options.text) if options.text else shipped_text()
    sentences = read_conllu(options.conllu) if options.conllu else None
    model = open_runnable(options, "torch", "transformers", "jinja2", to="run a model and show it")

    from manyheads.report.jsonform import dumps
    from manyheads.xray.heads import HeadsAsked
    from manyheads.xray.page import page
    from manyheads.xray.run import Request, xray
    from manyheads.xray.tables import report

    request = Request(
        model, reading, tokens=options.tokens, contexts=tuple(options.context or ()), threads=options.threads or 0,
        dtype=options.dtype, device=options.device, bos=options.bos, seed=options.seed,
        heads=None if options.no_heads else HeadsAsked(
            options.exact, options.seconds, options.map_tokens, sentences, options.least_effect
        ), command=options.typed,
    )  # fmt: skip
    found = xray(request, say=say)
    printed = in_options(report(found), options)
    _write(dumps(printed), page(found, said=lambda made: in_options(made, options)), targets)
    options.output = None  # it named a folder for the files; the report itself goes to stdout
    emit(printed, options)
    return 0 if found.agrees else 1


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


def _write(json: str, html: str, targets: tuple[str, str]) -> None:
    """Both files, or neither."""
    from manyheads.report.files import write_all

    json_path, html_path = targets
    write_all({json_path: json, html_path: html})
    progress(
        f"wrote {shown_path(html_path)} ({len(html.encode(errors='backslashreplace')) / 1024:,.0f} KiB) and {shown_path(json_path)}"
    )
