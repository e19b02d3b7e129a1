"""`manyheads bench [MODEL]`: attention on this machine, against its memory and against peers. Calls `manyheads.bench`."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from manyheads.cli import quantities
from manyheads.cli.common import emit, ending, in_options, need, progress, timed
from manyheads.cli.options import ASSUME, CONTEXT, DTYPES, JSON, KV_DTYPE, OUTPUT, REVISION, SEED, THREADS, Option, add
from manyheads.errors import ManyheadsError

if TYPE_CHECKING:
    from manyheads.bench.tables import Measured
    from manyheads.report import Report

__all__ = ["configure", "run"]

_EPILOG = """\
Every path is held against float64 first: one that disagrees gets no time.
A file that ends in .html gets tables and plots, one in .svg the first plot.

  manyheads bench --quick
  manyheads bench --kv-heads 8 --kv-dtype bf16 --context 2k,8k,32k --output bench.html
  manyheads bench path/to/model"""

_OPTIONS = (
    REVISION,
    ASSUME,
    replace(CONTEXT, help="cached tokens with commas (default 2k,8k,32k)", parameter="contexts"),
    Option("--kv-heads", "KV heads with commas (default 32,8,4,1)", "N", quantities.several(quantities.count(32))),
    replace(
        KV_DTYPE, help="format of the cache, several with commas (default fp32,bf16,fp16,int8)", read=quantities.several(quantities.dtype(*DTYPES, "int8")),
        parameter="dtypes", old=("--dtypes",), tried=(*KV_DTYPE.tried, "--dtype"),
    ),
    replace(THREADS, help="threads of every path (default: one for each core)"),
    Option("--quick", "one context and few rounds: a look, not a measurement", kind="switch", tried=("--fast",)),
    SEED,
    JSON,
    OUTPUT,
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.epilog = _EPILOG
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default="",
        help="measure its heads, and its tokens where it has weights (default: 32 heads x 128, DeepSeek-V3's latent)",
    )  # fmt: skip
    for option in _OPTIONS:
        add(parser, option)


def run(options: argparse.Namespace) -> int:
    """Prints what was measured; 1 where a path of ours is wrong or one is faster than the machine can be."""
    contexts = options.context or []
    kv_heads = _kv_heads(options.kv_heads or [])
    for package in ("torch", "numba"):
        need(package, to="measure attention on this machine")
    if options.output:
        from manyheads.report.files import check_target

        check_target(options.output)
        if ending(options.output) == "svg" and len(contexts) < 2 and (contexts or options.quick):
            raise ManyheadsError("one context makes no line to draw; valid: --context with two or more")

    from manyheads.bench.run import Request, bench
    from manyheads.bench.tables import faults, report
    from manyheads.checkpoints import open_model

    model = open_model(options.model, revision=options.revision, assume=options.assume) if options.model else None
    request = Request(
        model, contexts=tuple(contexts), kv_heads=kv_heads, dtypes=tuple(options.kv_dtype or ()),
        threads=options.threads or 0, quick=options.quick, seed=options.seed, command=options.typed,
    )  # fmt: skip
    measured = bench(request, say=timed(options))
    title = f"{os.path.basename(options.model) or 'Attention'}: measured on this machine"
    told = in_options(report(measured, title=title), options)
    _deliver(told, measured, options)
    return 1 if faults(measured) else 0


def _kv_heads(found: list[int]) -> tuple[int, ...]:
    odd = [heads for heads in found if 32 % heads]
    if odd:
        raise ManyheadsError(f"--kv-heads {odd[0]}: 32 query heads cannot share them evenly; valid: 1, 2, 4, 8, 16, 32")
    return tuple(found)


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
