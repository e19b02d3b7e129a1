"""`manyheads explain MODEL`: which path attention would take, and why. A thin caller of `manyheads.models.explain`."""

from __future__ import annotations

import argparse

from manyheads.cli import quantities
from manyheads.cli.common import emit, need
from manyheads.cli.options import BATCH, CONTEXT, DTYPE, DTYPES, JSON, KV_DTYPE, OUTPUT, add, add_model

__all__ = ["configure", "run"]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    add(parser, CONTEXT, help="tokens that are cached (default 8k = 8,192)", read=quantities.tokens(), default="8k")
    add(parser, BATCH, read=quantities.count(2**20))
    add(parser, DTYPE, help="run in fp32, bf16 or fp16 (default: the file's)", default=None)
    add(
        parser, KV_DTYPE, help="keep in model, fp32, bf16, fp16 or int8 (default %(default)s)", default="model",
        read=quantities.dtype("model", *DTYPES, "int8"),
    )  # fmt: skip
    add(parser, JSON)
    add(parser, OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Prints the paths; 1 where the model's attention does not pass through the door."""
    from manyheads.checkpoints import open_model

    if options.output is not None:
        from manyheads.report.files import check_target

        check_target(options.output)
    checkpoint = open_model(options.model, revision=options.revision, assume=options.assume)
    for package in ("torch", "transformers"):
        need(package, to="ask its attention functions")

    from manyheads.models.explain import Asked, explain

    stored = checkpoint.weight_dtype if checkpoint.weight_dtype in DTYPES else "bf16"
    report = explain(checkpoint, Asked(options.context, options.batch, options.dtype or stored, options.kv_dtype))
    emit(report, options)
    door = report.data["door"]
    assert isinstance(door, dict)
    return 0 if door["passes"] else 1
