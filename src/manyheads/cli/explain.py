"""`manyheads explain MODEL`: which path attention would take, and why. A thin caller of `manyheads.models.explain`."""

from __future__ import annotations

import argparse

from manyheads.cli import quantities
from manyheads.cli.common import add_json, add_output, emit, need
from manyheads.cli.cost import add_model
from manyheads.cost.dtypes import CACHE_DTYPES, MODEL_DTYPES, dtype_among

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    parser.add_argument("--context", metavar="N", default="8k", help="tokens that are cached (default 8k = 8,192)")
    parser.add_argument("--batch", metavar="N", default="1", help="sequences at once (default 1)")
    parser.add_argument("--dtype", metavar="TYPE", default="", help="run in fp32, bf16 or fp16 (default: the file's)")
    parser.add_argument(
        "--cache-dtype", metavar="TYPE", default="model", help="keep in model, fp32, bf16, fp16 or int8 (default model)"
    )
    add_json(parser)
    add_output(parser)


def run(options: argparse.Namespace) -> int:
    """Prints the paths; 1 where the model's attention does not pass through the door."""
    from manyheads.checkpoints import open_model

    context = quantities.contexts(options.context)[-1]
    batch = quantities.positive("--batch", options.batch, 2**20)
    wanted = dtype_among(options.dtype, MODEL_DTYPES, "--dtype") if options.dtype else ""
    kept = dtype_among(options.cache_dtype, CACHE_DTYPES, "--cache-dtype")
    if options.output is not None:
        from manyheads.report.files import check_target

        check_target(options.output)
    checkpoint = open_model(options.model, revision=options.revision, assume=options.assume)
    for package in ("torch", "transformers"):
        need(package, to="ask its attention functions")

    from manyheads.models.explain import Asked, explain

    stored = checkpoint.weight_dtype if checkpoint.weight_dtype in MODEL_DTYPES else "bf16"
    report = explain(checkpoint, Asked(context, batch, wanted or stored, kept))
    emit(report, options)
    door = report.data["door"]
    assert isinstance(door, dict)
    return 0 if door["passes"] else 1
