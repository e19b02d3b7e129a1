"""Decode attention against the roofline and against peers; writes docs/decode-speed.md and its picture.

    python benchmarks/decode.py [--quick] [--threads N] [--no-real] [--output docs/decode-speed.md]

About six minutes on an idle machine: every shape of 32 query heads x 128, DeepSeek-V3's latent attention, a prompt, and
SmolLM2-135M from the demo package under generate. --quick takes one context and few rounds, --no-real leaves SmolLM2 out.
Nothing is written, and the exit status is 1, where any path disagrees with its reference in float64.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from dataclasses import replace
from pathlib import Path

from manyheads.bench.run import Request, bench, tokens
from manyheads.bench.tables import Measured, impossible, losses, plots, report, wrong
from manyheads.checkpoints import open_model
from manyheads.report import Table
from manyheads.report.files import write_whole
from manyheads.report.svg import render_svg
from manyheads.report.units import gib

PAGE = Path(__file__).parents[1] / "docs" / "decode-speed.md"
DRAWN = "over 8 KV heads, bf16"


def markdown(table: Table) -> str:
    """A table of a report with its notes."""
    names = [column.name for column in table.columns]
    rule = ["---:" if column.align == "right" else "---" for column in table.columns]
    lines = [
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |" for cells in (names, rule, *table.rows)
    ]
    notes = [f"- {note}" for note in table.notes]
    return "\n".join([*lines, *(["", *notes] if notes else [])])


def page(measured: Measured, *, command: str, picture: str, seconds: float) -> str:
    """The whole of docs/decode-speed.md."""
    told = report(measured, title="")
    head = [table for table in told.tables if not table.question.startswith("How long does a step take")]
    details = [table for table in told.tables if table.question.startswith("How long does a step take")]
    around = measured.around
    machine, settings = around["machine"], around["settings"]
    versions = ", ".join(f"{name} {version}" for name, version in around["versions"].items())
    slower = losses(measured.contests)
    shown = f"![Time of a decode step against cached tokens]({picture})\n\n" if picture else ""
    return f"""# Decode attention on a CPU

One new token reads the whole cache, so the least time of a step is the larger of bytes / bandwidth and FLOPs / peak. This
page holds the kernels of `manyheads` against that, and against what else can be installed. It is written by

    {command}

which refuses to write it while any path disagrees with float64. Last written on {datetime.date.today().isoformat()} in
{seconds / 60:.0f} minutes on {machine["processor"]}, {machine["cores"]} cores, {gib(machine["memory_bytes"] or 0)} of memory,
with {around["threads"]} threads for every path; {versions}.

Bandwidth and peaks are measured between the calls that they judge, in the same rounds ({settings["rounds"]} of them, fewer
for paths that take long). Each path is called twice in a row, on two caches, as two layers of a model are, once all other
threads are still; the second call is timed. Caches are views of {gib(settings["rotation_bytes"])} or more, another one each call: the last-level
cache holds {gib(machine["last_level_cache_bytes"])}. Every path is first held against float64 on its input; `error` is the
largest relative error of a head. `manyheads bench` does the same with your models.

{shown}{chr(10).join(_section(table) for table in head)}
## Where others are faster

{chr(10).join(f"- {line}" for line in slower) or "Nowhere in this run, by medians."}

## Not to be believed

{chr(10).join(f"- {line}" for line in impossible(measured)) or "No path was faster than the roofline allows."}

## Every path

{chr(10).join(_details(table) for table in details)}"""


def _section(table: Table) -> str:
    return f"## {table.question}\n\n{markdown(table)}\n"


def _details(table: Table) -> str:
    return f"<details>\n<summary>{table.question}</summary>\n\n{markdown(table)}\n\n</details>\n"


def measure(asked: argparse.Namespace, began: float) -> Measured:
    """The standard shapes, and the demo model's tokens."""

    def say(text: str) -> None:
        print(f"{time.perf_counter() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    request = Request(threads=asked.threads, quick=asked.quick)
    measured = bench(request, say=say)
    if asked.no_real:
        return measured
    told, why = tokens(replace(request, model=open_model("demo")), say=say)
    return replace(measured, generation=told, notes=(*measured.notes, *([why] if why else [])))


def main() -> int:
    """Measures everything, and writes the page and its picture if every path was right."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--output", type=Path, default=PAGE)
    words.add_argument("--threads", type=int, default=0)
    words.add_argument("--quick", action="store_true")
    words.add_argument("--no-real", action="store_true")
    asked = words.parse_args()
    began = time.perf_counter()
    measured = measure(asked, began)
    red = wrong(measured)
    if red:
        print("no page written; disagreeing with float64:", *red, sep="\n", file=sys.stderr)
        return 1
    drawn = [plot for plot in plots(measured.decode) if DRAWN in plot.title]
    picture = render_svg(drawn[0]) if drawn else None
    image = asked.output.with_suffix(".svg")
    if picture:
        write_whole(image, picture)
    flags = (
        " --quick" * asked.quick + " --no-real" * asked.no_real + f" --threads {asked.threads}" * bool(asked.threads)
    )
    text = page(
        measured, command=f"python benchmarks/decode.py{flags}", picture=image.name if picture else "",
        seconds=time.perf_counter() - began,
    )  # fmt: skip
    write_whole(asked.output, text)
    print(f"{len(measured.contests)} shapes, all right: {asked.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
