"""`manyheads convert [MODEL]`: fewer key/value heads, what that saves and loses, and a model that stock software loads."""

from __future__ import annotations

import argparse
from dataclasses import replace

from manyheads.cli import quantities
from manyheads.cli.common import emit, need, timed
from manyheads.cli.options import CONTEXT, JSON, OUTPUT, SEED, TEXT, Option, add, add_model
from manyheads.cli.running import runnable
from manyheads.errors import ManyheadsError

__all__ = ["configure", "run"]

METHODS = ("closed", "layerfit", "mean", "first", "procrustes")
_OWN = (
    Option(
        "--kv-heads", "key/value heads of the converted model, in every layer", "N", quantities.count(),
        tried=("--num-kv-heads", "--kv", "--groups", "--num-key-value-heads"),
    ),
    Option(
        "--method", "closed, layerfit; mean, first or procrustes to compare with (default %(default)s)", "METHOD",
        quantities.one_of(*METHODS), METHODS[0],
    ),
    replace(
        TEXT, kind="many", default=None, metavar="FILE",
        help="text to calibrate on one half of and to judge on the other; may be given again (default: two kinds of our own)",
    ),
    replace(
        CONTEXT, default="512", read=quantities.tokens(least=2), parameter="context",
        help="tokens of a calibration window: the length that the model will be used at (default %(default)s)",
    ),
    Option("--windows", "calibration windows (default %(default)s)", "N", quantities.count(), "16"),
    Option(
        "--max-ratio", "the largest loss ratio, perplexity over that of the original, that is written (default %(default)s)",
        "RATIO", quantities.above_zero("not a ratio; valid: a number above 0, such as 1.5"), "1.5", parameter="max_ratio",
    ),
    Option("--accept-loss", "write it whatever it loses", kind="switch"),
    SEED,
    JSON,
    replace(OUTPUT, metavar="FOLDER", default="", help="write the converted model to FOLDER, which must not exist"),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, runs=True)
    for option in _OWN:
        add(parser, option)


def run(options: argparse.Namespace) -> int:
    """Prints what it saves and loses; writes the converted model where a folder is named and the loss is accepted, else 1."""
    from manyheads.checkpoints import open_model
    from manyheads.models.load.text import read_text
    from manyheads.models.store.output_folder import check_folder
    from manyheads.quoting import shown_path

    if options.assume:
        raise ManyheadsError(
            f"--assume {options.assume} prices attention that is not understood; it cannot be converted"
        )
    if not options.kv_heads:
        raise ManyheadsError("nothing would change: say how many key/value heads the model shall have, --kv-heads N")
    texts = tuple(read_text(each) for each in options.text)
    found = runnable(options)
    if options.output:
        check_folder(options.output, model=found, named=f"--output {shown_path(options.output)}")
    for package in ("torch", "transformers"):
        need(package, to="run a model and convert it")

    from manyheads.convert.run import Request, convert
    from manyheads.convert.tables import report

    model = open_model(found, revision=options.revision)
    request = Request(
        model, options.kv_heads, options.method, texts, context=options.context, windows=options.windows,
        output=options.output, most_ratio=options.max_ratio, accept_loss=options.accept_loss, seed=options.seed, typed=options.typed,
    )  # fmt: skip
    told = convert(request, say=timed(options))
    options.output = None  # it named a folder for the model; the report itself goes to stdout
    emit(report(told), options)
    return 0 if told.accepted else 1
