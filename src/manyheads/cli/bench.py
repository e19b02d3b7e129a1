"""`manyheads bench [MODEL]`: attention on this machine, against its memory and against peers. Calls `manyheads.bench`."""

from __future__ import annotations

import argparse
import os
import shlex
from typing import TYPE_CHECKING

from manyheads.cli import quantities
from manyheads.cli.common import add_json, add_output, add_seed, emit, ending, need, progress, timed
from manyheads.cost.dtypes import CACHE_DTYPES, dtype_among
from manyheads.errors import ManyheadsError

if TYPE_CHECKING:
    from manyheads.bench.tables import Measured
    from manyheads.report import Report

__all__ = ["configure", "run"]

_EPILOG = """\
Every path is held against float64 first: one that disagrees gets no time.
A file that ends in .html gets tables and plots, one in .svg the first plot.

  manyheads bench --quick
  manyheads bench --kv-heads 8 --dtypes bf16 --contexts 2k,8k,32k --output bench.html
  manyheads bench path/to/model"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default="",
        help="measure its heads, and its tokens where it has weights (default: 32 heads x 128, DeepSeek-V3's latent)",
    )  # fmt: skip
    parser.add_argument("--revision", metavar="REV", default=None, help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--assume", metavar="full", default="", help="full: take a config with fields not understood as full attention"
    )
    parser.add_argument("--contexts", metavar="N", default="", help="cached tokens with commas (default 2k,8k,32k)")
    parser.add_argument("--kv-heads", metavar="N", default="", help="KV heads with commas (default 32,8,4,1)")
    parser.add_argument("--dtypes", metavar="TYPE", default="", help="of the cache (default fp32,bf16,fp16,int8)")
    parser.add_argument("--threads", metavar="N", default="", help="threads of every path (default: one for each core)")
    parser.add_argument("--quick", action="store_true", help="one context and few rounds: a look, not a measurement")
    add_seed(parser)
    add_json(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints what was measured; 1 where a path of ours is wrong or one is faster than the machine can be."""
    contexts = quantities.contexts(options.contexts, option="--contexts") if options.contexts else []
    threads = quantities.positive("--threads", options.threads, 1024) if options.threads else 0
    kv_heads = _kv_heads(options.kv_heads)
    dtypes = _dtypes(options.dtypes)
    for package in ("torch", "numba"):
        need(package, to="measure attention on this machine")
    if options.output:
        from manyheads.report.files import check_target

        check_target(options.output)
        if ending(options.output) == "svg" and len(contexts) < 2 and (contexts or options.quick):
            raise ManyheadsError("one context makes no line to draw; valid: --contexts with two or more")

    from manyheads.bench.run import Request, bench
    from manyheads.bench.tables import faults, report

    request = Request(
        options.model, revision=options.revision, assume=options.assume, contexts=tuple(contexts), kv_heads=kv_heads,
        dtypes=dtypes, threads=threads, quick=options.quick, seed=options.seed, command=_command(options),
    )  # fmt: skip
    measured = bench(request, say=timed())
    told = report(measured, title=f"{os.path.basename(options.model) or 'Attention'}: measured on this machine")
    _deliver(told, measured, options)
    return 1 if faults(measured) else 0


def _kv_heads(text: str) -> tuple[int, ...]:
    found = tuple(quantities.positive("--kv-heads", part, 32) for part in text.split(",")) if text else ()
    odd = [heads for heads in found if 32 % heads]
    if odd:
        raise ManyheadsError(f"--kv-heads {odd[0]}: 32 query heads cannot share them evenly; valid: 1, 2, 4, 8, 16, 32")
    return found


def _dtypes(text: str) -> tuple[str, ...]:
    return tuple(dtype_among(part.strip(), CACHE_DTYPES[1:], "--dtypes") for part in text.split(",")) if text else ()


def _deliver(told: Report, measured: Measured, options: argparse.Namespace) -> None:
    """To stdout, or to the file as what its ending asks for."""
    kind = ending(options.output)
    if kind not in ("html", "svg") or options.json:
        emit(told, options)
        return
    from manyheads.report.files import write_whole

    write_whole(options.output, _page(told, measured) if kind == "html" else _picture(measured))
    progress(f"wrote {options.output}")


def _page(told: Report, measured: Measured) -> str:
    need("jinja2", to="write a page")
    from manyheads.bench.tables import plots
    from manyheads.report.html import render_html

    machine = measured.around["machine"]
    made = (
        f"Measured on {machine['processor']} with {measured.around['threads']} threads by {measured.around['command']}"
    )
    return render_html(told, plots=plots(measured.decode), made=made, verb="bench", brand="bench")


def _picture(measured: Measured) -> str:
    from manyheads.bench.tables import plots
    from manyheads.report.svg import render_svg

    drawn = [picture for plot in plots(measured.decode) if (picture := render_svg(plot))]
    if not drawn:
        raise ManyheadsError("there is no line to draw: a model that keeps latents or states has none of these steps")
    return drawn[0]


def _command(options: argparse.Namespace) -> str:
    """The command as it could be typed again."""
    words = ["manyheads", "bench", *([options.model] if options.model else [])]
    for name in ("revision", "assume", "contexts", "kv_heads", "dtypes", "threads", "quick", "seed"):
        value = getattr(options, name)
        if value:
            flag = f"--{name.replace('_', '-')}"
            words += [flag] if value is True else [flag, str(value)]
    return shlex.join(words)
