"""`manyheads heads [MODEL]`: where each head looks, what its role is, how much it matters. A thin caller of `heads.overview.run`."""

from __future__ import annotations

import argparse
from dataclasses import replace

from manyheads.cli import options as known
from manyheads.cli import quantities
from manyheads.cli.common import UsageError, emit, ending, in_options, progress, timed, write_stdout
from manyheads.cli.options import Option, add, add_model
from manyheads.cli.running import open_runnable

__all__ = ["configure", "run"]


_OPTIONS = (
    known.TEXT,
    known.TOKENS,
    Option("--window", "in windows of N tokens (default %(default)s)", "N", quantities.tokens(least=2), "512"),
    Option("--head", 'one head in detail: "17:3" is layer:head', "HEAD", default=""),
    known.BOS,
    Option("--roles", "test what each head does (default: yes)", kind="either", default=True),
    known.CONLLU,
    known.LEAST_EFFECT,
    replace(
        known.IMPORTANCE, help="first-order, zero, mean, resample or none (default %(default)s)", parameter="importance",
        read=quantities.one_of(*known.IMPORTANCES, "none"),
    ),
    known.DTYPE,
    known.DEVICE,
    known.THREADS,
    known.SEED,
    Option("--csv", "print one line a head, comma-separated, instead of text", kind="switch"),
    known.JSON,
    known.OUTPUT,
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, runs=True)
    for option in _OPTIONS:
        add(parser, option)


def run(options: argparse.Namespace) -> int:
    """Prints the heads."""
    from manyheads.models.load.text import read_text, shipped_text

    if options.csv and options.json:
        raise UsageError("--csv and --json are two forms of one answer; ask for one of them")
    page = ending(options.output) == "html" and not (options.csv or options.json)
    if options.conllu and not options.roles:
        raise UsageError("--conllu is for roles, and --no-roles asks for none")
    _check_target(options.output)
    reading = read_text(options.text) if options.text else shipped_text()
    packages = ("torch", "transformers", "numba", *(("jinja2",) if page else ()))
    model = open_runnable(options, *packages, to="run a model and look at its heads")

    from manyheads.heads.overview.run import Request, overview
    from manyheads.heads.overview.tables import as_csv, report
    from manyheads.heads.page.page import Pictures

    request = Request(
        model, reading, tokens=options.tokens, window=options.window, bos=options.bos, head=options.head,
        roles=options.roles, conllu=options.conllu, least_effect=options.least_effect, importance=options.importance,
        dtype=options.dtype, device=options.device, threads=options.threads or 0, seed=options.seed, asked=options.model,
    )  # fmt: skip
    pictures = Pictures() if page else None
    told = overview(request, say=timed(options), look=pictures.take if pictures else None)
    if options.csv:
        _write(as_csv(told), options.output)
    elif pictures:
        _write(pictures.page(told, said=lambda made: in_options(made, options)), options.output)
    else:
        emit(report(told), options)
    return 0


def _check_target(output: str | None) -> None:
    if output is not None:
        from manyheads.report.files import check_target

        check_target(output)


def _write(text: str, output: str | None) -> None:
    if output is None:
        write_stdout(text)
        return
    from manyheads.report.files import write_whole

    write_whole(output, text)
    progress(f"wrote {output}")
