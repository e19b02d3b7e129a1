"""`manyheads heads [MODEL]`: where each head looks, what its role is, how much it matters. A thin caller of `heads.overview.run`."""

from __future__ import annotations

import argparse

from manyheads.cli import quantities
from manyheads.cli.common import (
    UsageError,
    add_json,
    add_least_effect,
    add_output,
    add_seed,
    emit,
    ending,
    need,
    progress,
    timed,
    write_stdout,
)
from manyheads.cli.cost import add_model
from manyheads.cost.dtypes import MODEL_DTYPES, dtype_among
from manyheads.errors import ManyheadsError
from manyheads.quoting import shown

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, runs=True)
    parser.add_argument("--text", metavar="FILE", default="", help="text to read, UTF-8 (default: a text of our own)")
    parser.add_argument("--tokens", metavar="N", default="8192", help="read the first N tokens of it (default 8192)")
    parser.add_argument("--window", metavar="N", default="512", help="in windows of N tokens (default 512)")
    parser.add_argument("--head", metavar="HEAD", default="", help='one head in detail: "17:3" is layer:head')
    parser.add_argument(
        "--bos", action=argparse.BooleanOptionalAction, default=None,
        help="a beginning-of-text token before each window, or none (default: as the tokenizer does)",
    )  # fmt: skip
    parser.add_argument(
        "--roles", action=argparse.BooleanOptionalAction, default=True, help="test what each head does (default: yes)"
    )
    parser.add_argument("--conllu", metavar="FILE", default="", help="annotated sentences, for the syntactic roles")
    add_least_effect(parser)
    parser.add_argument(
        "--importance", metavar="METHOD", default="first-order",
        help="first-order, zero, mean, resample or none (default %(default)s)",
    )  # fmt: skip
    parser.add_argument("--dtype", metavar="TYPE", default="fp32", help="run in fp32, bf16 or fp16 (default fp32)")
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="where torch runs it: cpu, cuda, mps (default cpu)"
    )
    parser.add_argument("--threads", metavar="N", default="", help="threads of torch (default: one for each free core)")
    add_seed(parser)
    parser.add_argument("--csv", action="store_true", help="print one line a head, comma-separated, instead of text")
    add_json(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the heads."""
    from manyheads.checkpoints.locate import locate
    from manyheads.models.load.model import check_runnable, demo_model
    from manyheads.models.load.text import read_text, shipped_text

    if options.csv and options.json:
        raise UsageError("--csv and --json are two forms of one answer; ask for one of them")
    page = ending(options.output) == "html" and not (options.csv or options.json)
    numbers = {name: quantities.positive(f"--{name}", getattr(options, name)) for name in ("tokens", "window")}
    for name, value in numbers.items():
        if value < 2:
            raise ManyheadsError(f"--{name} {value}: at least 2 tokens are needed")
    least_effect = quantities.share("--least-effect", options.least_effect)
    threads = quantities.positive("--threads", options.threads, 1024) if options.threads else 0
    options.dtype = dtype_among(options.dtype, MODEL_DTYPES, "--dtype")
    if options.conllu and not options.roles:
        raise UsageError("--conllu is for roles, and --no-roles asks for none")
    _check_target(options.output)
    reading = read_text(options.text) if options.text else shipped_text()
    model = options.model or demo_model()
    check_runnable(locate(model))
    for package in ("torch", "transformers", "numba", *(("jinja2",) if page else ())):
        need(package, to="run a model and look at its heads")

    from manyheads.heads.overview.run import IMPORTANCE, Request, overview
    from manyheads.heads.overview.tables import as_csv, report
    from manyheads.heads.page.page import Pictures

    if options.importance not in IMPORTANCE:
        raise ManyheadsError(f"--importance {shown(options.importance)} is not one of {', '.join(IMPORTANCE)}")
    request = Request(
        model, reading, bos=options.bos, head=options.head, roles=options.roles, conllu=options.conllu,
        least_effect=least_effect, importance=options.importance, revision=options.revision, assume=options.assume,
        dtype=options.dtype,
        device=options.device, threads=threads, seed=options.seed, **numbers,
    )  # fmt: skip
    pictures = Pictures() if page else None
    told = overview(request, say=timed(), look=pictures.take if pictures else None) | {"asked": options.model}
    if options.csv:
        _write(as_csv(told), options.output)
    elif pictures:
        _write(pictures.page(report(told)), options.output)
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
