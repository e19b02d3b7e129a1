"""`manyheads cost MODEL`: what a model's attention costs. A thin caller of `manyheads.read` and `manyheads.price`."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from manyheads.cli import quantities
from manyheads.cli.common import emit, need
from manyheads.cli.options import BATCH, CONTEXT, JSON, KV_DTYPE, OUTPUT, Option, add, add_model

if TYPE_CHECKING:
    from manyheads.cost.roofline import Machine

__all__ = ["configure", "run"]

DEFAULT_DTYPE = "bf16"
_OWN = (
    Option(
        "--source-tokens", "what an encoder in front of a decoder reads", "N", quantities.tokens(),
        tried=("--encoder-tokens",),
    ),
    Option(
        "--weight-dtype", "format of the weights (default: the file's)", "TYPE", default="",
        tried=("--quant", "--quantization", "--dtype", "--precision"),
    ),
    replace(
        KV_DTYPE, help="format of the cache (default %(default)s); q8_0/f16: of keys and values apart", default=DEFAULT_DTYPE
    ),
    Option(
        "--hardware", "time the steps on h100, m2, ...; this-machine", "NAME", default="",
        tried=("--gpu", "--device", "--gpu-type"),
    ),
    Option(
        "--memory", f"does it fit in so many bytes? exit 1 where not; {quantities.BYTES_HELP}", "SIZE", quantities.memory,
        tried=("--vram", "--mem", "--gpu-memory", "--budget"),
    ),
    Option(
        "--tensor-parallel", "also the bytes of one rank of N", "N", quantities.count(), "1",
        tried=("--tp", "--tp-size", "--tensor-parallel-size", "--gpus", "--ranks"),
    ),
    Option(
        "--what-if", "mha, gqa:N, mqa, mla:RANK+ROPE, window:N, linear, heads:N, head-dim:N; join with commas; repeatable",
        "CHANGE", kind="many",
    ),
)  # fmt: skip


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    add(parser, CONTEXT, help=f"{CONTEXT.help}, the last priced")
    add(parser, BATCH)
    for option in _OWN:
        add(parser, option)
    add(parser, JSON)
    add(parser, OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Prints the price; 1 where it does not fit in --memory."""
    from manyheads.checkpoints import open_model

    checkpoint = open_model(options.model, revision=options.revision, assume=options.assume)
    machine = _machine(options.hardware) if options.hardware else None

    from manyheads.cost.pricing import price
    from manyheads.cost.tables import report

    priced = price(
        checkpoint.stack,
        context_tokens=options.context or [0],
        batch=options.batch,
        source_tokens=options.source_tokens or 0,
        weight_dtype=options.weight_dtype or checkpoint.weight_dtype or DEFAULT_DTYPE,
        kv_dtype=options.kv_dtype,
        weight_bytes=0 if options.weight_dtype else checkpoint.stored_bytes or 0,
        hardware=machine,
        memory=options.memory or 0,
        tensor_parallel=options.tensor_parallel,
        what_if=options.what_if,
        name=checkpoint.name,
        source=checkpoint.source,
        notes=checkpoint.all_notes,
    )
    emit(report(priced), options)
    return 1 if priced.memory is not None and not priced.memory.fits else 0


def _machine(name: str) -> Machine:
    if name.strip().lower().replace("_", "-").replace(" ", "-") == "this-machine":
        for package in ("torch", "numba"):
            need(package, to="measure this machine")
        from manyheads.bench.this_machine import this_machine

        return this_machine()
    from manyheads.facts.hardware import find_hardware

    return find_hardware(name)
