"""`manyheads prune [MODEL]`: remove heads, say what that saves and loses, write the smaller model."""

from __future__ import annotations

import argparse

from manyheads.cli import quantities
from manyheads.cli.common import add_json, add_seed, emit, need, timed
from manyheads.cli.cost import add_model
from manyheads.errors import ManyheadsError
from manyheads.quoting import shown

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, runs=True)
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--heads", metavar="HEADS", default="", help='heads to remove: "0:1,3;5:0-2" is layer:head,head;layer:head-head'
    )
    which.add_argument(
        "--budget", metavar="N", default="", help="remove the N heads that matter least; 20%% for a share of all"
    )
    which.add_argument(
        "--gates", metavar="PENALTY", default="", help="train gates and remove what they close at this cost of a head"
    )
    parser.add_argument(
        "--by",
        metavar="METHOD",
        default="first-order",
        help="importance: first-order, zero, mean or resample (default %(default)s)",
    )
    parser.add_argument(
        "--rounds", metavar="N", default="8", help="ask for importance again N times (default %(default)s)"
    )
    parser.add_argument(
        "--steps", metavar="N", default="300", help="steps that gates are trained for (default %(default)s)"
    )
    parser.add_argument(
        "--whole-groups",
        action="store_true",
        help="heads that share keys and values go together, so that the cache shrinks",
    )
    parser.add_argument(
        "--text", metavar="FILE", default="", help="text to choose and judge on, UTF-8 (default: a text of our own)"
    )
    parser.add_argument(
        "--tokens", metavar="N", default="4096", help="use the first N tokens of it (default %(default)s)"
    )
    parser.add_argument(
        "--compare-init", action="store_true", help="repeat it on the same architecture at initialisation"
    )
    parser.add_argument(
        "--form", metavar="FORM", default="auto", help="uniform, padded or compact (default: the first two that can be)"
    )
    parser.add_argument(
        "--device", metavar="NAME", default="cpu", help="where torch runs it: cpu, cuda, mps (default cpu)"
    )
    add_seed(parser)
    add_json(parser)
    parser.add_argument(
        "--output", metavar="FOLDER", default="", help="write the smaller model to FOLDER, which must not exist"
    )


def run(options: argparse.Namespace) -> int:
    """Prints what goes, what that saves and what it loses; writes the smaller model where a folder is named."""
    from manyheads.checkpoints.locate import locate
    from manyheads.heads.pruning import check_folder
    from manyheads.models.load.model import check_runnable, demo_model
    from manyheads.models.load.text import read_text, shipped_text
    from manyheads.quoting import shown_path

    if options.assume:
        raise ManyheadsError(
            f"--assume {options.assume} prices attention that is not understood; its heads cannot be removed"
        )
    if not (options.heads or options.budget or options.gates):
        raise ManyheadsError(
            'nothing would be removed: name heads (--heads "0:1,3;5:2"), a number of them (--budget 20%) or the cost of '
            "one (--gates 0.01)"
        )
    numbers = {name: quantities.positive(f"--{name}", getattr(options, name)) for name in ("rounds", "steps", "tokens")}
    if numbers["tokens"] < 4:
        raise ManyheadsError(
            f"--tokens {numbers['tokens']}: at least 4 are needed, half to choose on and half to judge on"
        )
    penalty = _penalty(options.gates) if options.gates else 0.0
    reading = read_text(options.text) if options.text else shipped_text()
    model = options.model or demo_model()
    check_runnable(locate(model))
    if options.output:
        check_folder(options.output, model=locate(model), named=f"--output {shown_path(options.output)}")
    for package in ("torch", "transformers"):
        need(package, to="run a model and remove its heads")

    from manyheads.heads.pruning.run import GATES, METHODS, Request, pruning
    from manyheads.heads.pruning.tables import report

    if options.by not in METHODS[:-1]:
        raise ManyheadsError(f"--by {shown(options.by)} is not one of {', '.join(METHODS[:-1])}")
    _check_form(options.form)
    request = Request(
        model, reading, heads=options.heads, budget=options.budget, method=GATES if options.gates else options.by,
        penalty=penalty, whole_groups=options.whole_groups, output=options.output, form=options.form,
        compare_init=options.compare_init, revision=options.revision, device=options.device, seed=options.seed,
        named=bool(options.model), **numbers,
    )  # fmt: skip
    told = pruning(request, say=timed())
    options.output = None  # it named a folder for the model; the report itself goes to stdout
    emit(report(told), options)
    return 0


def _penalty(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ManyheadsError(
            f"--gates {shown(text)} is not a cost of a head in nats; valid: a number above 0, such as 0.01"
        )
    return value


def _check_form(form: str) -> None:
    from manyheads.checkpoints.pruned import FORMS

    if form not in ("auto", *FORMS):
        raise ManyheadsError(f"--form {shown(form)} is not one of auto, {', '.join(FORMS)}")
