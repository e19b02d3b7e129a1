"""`manyheads cost MODEL`: what a model's attention costs. A thin caller of `manyheads.read` and `manyheads.price`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from manyheads.cli import quantities
from manyheads.cli.common import add_json, add_output, emit, need

if TYPE_CHECKING:
    from manyheads.cost.roofline import Machine

__all__ = ["configure", "run"]

DEFAULT_DTYPE = "bf16"


def configure(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    add_model(parser)
    parser.add_argument(
        "--context", metavar="N", default="", help="tokens: 128000, 128k (= 131,072); several with commas, last priced"
    )
    parser.add_argument("--batch", metavar="N", default="1", help="sequences at once (default 1)")
    parser.add_argument("--source-tokens", metavar="N", default="", help="what an encoder in front of a decoder reads")
    parser.add_argument(
        "--weight-dtype", metavar="TYPE", default="", help="format of the weights (default: the file's)"
    )
    parser.add_argument(
        "--kv-dtype", metavar="TYPE", default=DEFAULT_DTYPE,
        help="format of the cache (default bf16); q8_0/f16: of keys and values apart",
    )  # fmt: skip
    parser.add_argument("--hardware", metavar="NAME", default="", help="time the steps on h100, m2, ...; this-machine")
    parser.add_argument("--memory", metavar="SIZE", default="", help="does it fit in 80GB, 24GiB? exit 1 where not")
    parser.add_argument("--tensor-parallel", metavar="N", default="1", help="also the bytes of one rank of N")
    parser.add_argument(
        "--what-if", metavar="CHANGE", action="append", default=[],
        help="mha, gqa:N, mqa, mla:RANK+ROPE, window:N, linear, heads:N, head-dim:N; join with commas; repeatable",
    )  # fmt: skip
    add_json(parser)
    add_output(parser)


def add_model(parser: argparse.ArgumentParser, *, runs: bool = False) -> None:
    """The one positional argument of every verb about a model, and how a config that is not understood is taken.

    `runs`: the verb needs weights, and takes the demo model where none is named.
    """
    if runs:
        parser.add_argument(
            "model", metavar="MODEL", nargs="?", default="",
            help="folder with config.json and .safetensors, .gguf file or hub id (default: the demo model)",
        )  # fmt: skip
    else:
        parser.add_argument(
            "model", metavar="MODEL",
            help="folder, config.json, .safetensors, .gguf, hub id, census name or spec in words",
        )  # fmt: skip
    parser.add_argument("--revision", metavar="REV", default=None, help="branch, tag or commit of a hub id")
    parser.add_argument(
        "--assume", metavar="full", default="", help="full: price a config with fields not understood as full attention"
    )


def run(options: argparse.Namespace) -> int:
    """Prints the price; 1 where it does not fit in --memory."""
    from manyheads.checkpoints import open_model
    from manyheads.cost.parallel import MOST_RANKS

    contexts = quantities.contexts(options.context) if options.context else [0]
    batch = quantities.positive("--batch", options.batch)
    ranks = quantities.positive("--tensor-parallel", options.tensor_parallel, MOST_RANKS)
    budget = quantities.memory(options.memory) if options.memory else 0
    source_tokens = (
        quantities.positive("--source-tokens", options.source_tokens, 10**12) if options.source_tokens else 0
    )
    checkpoint = open_model(options.model, revision=options.revision, assume=options.assume)
    machine = _machine(options.hardware) if options.hardware else None

    from manyheads.cost.pricing import price
    from manyheads.cost.tables import report

    priced = price(
        checkpoint.stack,
        context_tokens=contexts,
        batch=batch,
        source_tokens=source_tokens,
        weight_dtype=options.weight_dtype or checkpoint.weight_dtype or DEFAULT_DTYPE,
        kv_dtype=options.kv_dtype,
        weight_bytes=0 if options.weight_dtype else checkpoint.stored_bytes or 0,
        hardware=machine,
        memory=budget,
        tensor_parallel=ranks,
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
