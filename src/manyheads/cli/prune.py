"""`manyheads prune [MODEL]`: remove heads, say what that saves and loses, write the smaller model."""

from __future__ import annotations

import argparse
from dataclasses import replace

from manyheads.cli import quantities
from manyheads.cli.common import emit, need, timed
from manyheads.cli.options import DEVICE, IMPORTANCE, JSON, OUTPUT, SEED, TEXT, TOKENS, Option, add, add_model
from manyheads.cli.running import runnable
from manyheads.errors import ManyheadsError

__all__ = ["configure", "run"]


_FORMS = ("auto", "uniform", "padded", "compact")
_HEADS = Option(
    "--heads",
    'heads to remove: "0:1,3;5:0-2" is layer:head,head;layer:head-head',
    "HEADS",
    default="",
    tried=("--head",),
)
_BUDGET = Option(
    "--budget", "remove the N heads that matter least; 20%% for a share of all", "N", default="",
    tried=("--ratio", "--sparsity", "--count"),
)  # fmt: skip
_GATES = Option(
    "--gates", "train gates and remove what they close at this cost of a head", "PENALTY",
    quantities.above_zero("not a cost of a head in nats; valid: a number above 0, such as 0.01"), parameter="penalty",
)  # fmt: skip
_OWN = (
    IMPORTANCE,
    Option("--rounds", "ask for importance again N times (default %(default)s)", "N", quantities.count(), "8"),
    Option(
        "--steps", "steps that gates are trained for (default %(default)s)", "N", quantities.count(), "300",
        tried=("--iterations", "--max-steps"),
    ),
    Option(
        "--whole-groups", "heads that share keys and values go together, so that the cache shrinks", kind="switch"
    ),
    replace(TEXT, help="text to choose and judge on, UTF-8 (default: a text of our own)"),
    replace(TOKENS, default="4096", read=quantities.tokens(least=4)),  # half to choose on and half to judge on
    Option("--compare-init", "repeat it on the same architecture at initialisation", kind="switch"),
    Option(
        "--form", "uniform, padded or compact (default: the first two that can be)", "FORM", quantities.one_of(*_FORMS),
        "auto",
    ),
    DEVICE,
    SEED,
    JSON,
    replace(OUTPUT, metavar="FOLDER", default="", help="write the smaller model to FOLDER, which must not exist"),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser, runs=True)
    which = parser.add_mutually_exclusive_group()
    for option in (_HEADS, _BUDGET, _GATES):
        add(which, option)
    for option in _OWN:
        add(parser, option)


def run(options: argparse.Namespace) -> int:
    """Prints what goes, what that saves and what it loses; writes the smaller model where a folder is named."""
    from manyheads.checkpoints import open_model
    from manyheads.models.load.text import read_text, shipped_text
    from manyheads.models.store.output_folder import check_folder
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
    reading = read_text(options.text) if options.text else shipped_text()
    found = runnable(options)
    if options.output:
        check_folder(options.output, model=found, named=f"--output {shown_path(options.output)}")
    for package in ("torch", "transformers"):
        need(package, to="run a model and remove its heads")

    from manyheads.heads.model_spec import about_removing
    from manyheads.heads.pruning.run import GATES, Request, pruning
    from manyheads.heads.pruning.tables import report

    with about_removing():
        model = open_model(found, revision=options.revision)
    request = Request(
        model, reading, heads=options.heads, budget=options.budget, method=GATES if options.gates else options.importance,
        penalty=options.gates or 0.0, steps=options.steps, rounds=options.rounds, tokens=options.tokens,
        whole_groups=options.whole_groups, output=options.output, form=options.form, compare_init=options.compare_init,
        device=options.device, seed=options.seed, named=bool(options.model),
    )  # fmt: skip
    told = pruning(request, say=timed(options))
    options.output = None  # it named a folder for the model; the report itself goes to stdout
    emit(report(told), options)
    return 0
