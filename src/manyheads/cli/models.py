"""`manyheads models`: the census as a table, filtered and sorted, or one model with all that is known of it.

Every figure of a row is derived from the model's config through the spec, as `manyheads cost` does; what was published
stands beside it in the record of a single model.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from manyheads.cli.common import emit, nearest
from manyheads.cli.options import JSON, OUTPUT, Option, add
from manyheads.record import record
from manyheads.report import Column, Report, Table

if TYPE_CHECKING:
    from manyheads.facts.census import CensusEntry
    from manyheads.spec import AttentionSpec, StackSpec

__all__ = ["SCHEMA", "configure", "run"]

SCHEMA = "manyheads.models/1"
SCHEMES = ("mha", "gqa", "mqa", "mla", "linear", "window")

_EPILOG = """\
Words narrow the list: a model stays when each is part of its name or of one of
its hub ids. A single name of the census shows that model's record. An order
runs from small to large, old to new.

  manyheads models --scheme mla
  manyheads models llama --sort cache --reverse
  manyheads models gpt2-xl"""

_LEGEND = (
    "H/K query and key/value heads (H alone: a latent or a state instead), d width, d_h size of a head, L layers "
    "(of the decoder where there are two stacks), params stored once, a tied head once."
)
_LEGEND_CACHE = (
    "KV B/token: cache bytes that a token adds in 16 bits while the context is short; - where none is kept (encoders)."
)
_LEGEND_WINDOW = "* Some layers see a window of tokens: past it the cache grows more slowly, or not at all."


@record
class _Row:
    """One model as the list shows it. `layer` is its first layer that keeps a cache, else its first."""

    entry: CensusEntry
    stack: StackSpec
    layer: AttentionSpec
    schemes: tuple[str, ...]
    windowed: bool
    kv_bytes: int
    parameters: int

    @property
    def scheme(self) -> str:
        """The scheme of all layers, or "mixed"."""
        return self.schemes[0] if len(self.schemes) == 1 else "mixed"

    @property
    def kv_heads(self) -> int | None:
        """Key/value heads of `layer`; None where it keeps a latent or a state instead."""
        from manyheads.spec import Heads

        return self.layer.kv.num_kv_heads if isinstance(self.layer.kv, Heads) else None


_ORDERS: dict[str, Callable[[_Row], tuple[int | str, ...]]] = {
    "year": lambda row: (row.entry.year, row.entry.month or 13),
    "heads": lambda row: (row.layer.num_heads, row.kv_heads or 0),
    "cache": lambda row: (row.kv_bytes,),
    "parameters": lambda row: (row.parameters,),
    "name": lambda row: (row.entry.name,),
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.epilog = _EPILOG
    parser.add_argument("words", metavar="WORDS", nargs="*", help="words that the model's names must hold, or one name")
    add(
        parser,
        Option(
            "--scheme", "only models with such a layer (window: one that sees a window of tokens)", choices=SCHEMES,
            tried=("--type", "--kind", "--attention"),
        ),
    )  # fmt: skip
    add(parser, Option("--sort", "the order (default %(default)s)", default="year", choices=tuple(_ORDERS)))
    add(parser, Option("--reverse", "large before small, new before old", kind="switch"))
    add(parser, JSON)
    add(parser, OUTPUT)


def run(options: argparse.Namespace) -> int:
    """Prints the list, or the record of one model; 1 when no model fits."""
    from manyheads.facts.census import census, find, names

    name = " ".join(options.words)
    entry = find(name) if name else None
    if entry is not None and options.scheme is None:
        emit(_record(_row(entry)), options)
        return 0
    words = [_searchable(word) for word in options.words]
    rows = [_row(entry) for entry in census() if all(word in _names(entry) for word in words)]
    rows = [row for row in rows if options.scheme is None or options.scheme in _traits(row)]
    rows.sort(key=_ORDERS[options.sort], reverse=options.reverse)
    asked = " ".join(filter(None, (name, options.scheme and f"--scheme {options.scheme}")))
    emit(_listing(rows, asked, nearest(name, names()) if name else ""), options)
    return 0 if rows else 1


def _row(entry: CensusEntry) -> _Row:
    from manyheads.checkpoints.config import read_config
    from manyheads.cost.model import full_slope_elements
    from manyheads.cost.parameters import stored_parameters
    from manyheads.spec import Heads, Latent, Window, weights

    stack = read_config(entry.config, source=entry.name).stack
    layers = [block.attention for block, _ in stack.main.groups if block.attention is not None]
    caching = [layer for layer in layers if isinstance(layer.kv, Heads | Latent)]
    generates = stack.decoder is not None
    return _Row(
        entry=entry,
        stack=stack,
        layer=(caching or layers)[0],
        schemes=tuple(dict.fromkeys(layer.scheme for layer in layers)),
        windowed=any(isinstance(layer.mask, Window) for layer in layers),
        kv_bytes=2 * full_slope_elements(stack) if generates else 0,
        parameters=stored_parameters(weights(stack)),
    )


def _names(entry: CensusEntry) -> str:
    return _searchable("\n".join((entry.name, entry.title, *entry.aliases)))


def _searchable(text: str) -> str:
    return text.lower().replace("_", "-").replace(" ", "-")


def _traits(row: _Row) -> tuple[str, ...]:
    return (*row.schemes, "window") if row.windowed else row.schemes


def _listing(rows: list[_Row], asked: str, hint: str) -> Report:
    data: dict[str, object] = {"schema": SCHEMA, "models": [_facts(row) for row in rows]}
    if not rows:
        return Report(title=f"No model of the census fits {asked}{hint}", data=data)
    columns = (
        Column("name"),
        Column("year", "right"),
        Column("H/K", "right"),
        Column("d", "right"),
        Column("d_h", "right"),
        Column("L", "right"),
        Column("scheme"),
        Column("KV B/token", "right"),
        Column("params", "right"),
    )
    notes = [_LEGEND, _LEGEND_CACHE]
    if any(row.windowed for row in rows):
        notes.append(_LEGEND_WINDOW)
    what, verb = ("1 model", "fits") if len(rows) == 1 else (f"{len(rows)} models", "fit")
    table = Table("What keys and values do they keep?", columns, tuple(map(_cells, rows)), tuple(notes))
    return Report(
        title=f"The census: {what}{f' that {verb} {asked}' if asked else ''}",
        tables=(table,),
        data=data,
        next_command=f"manyheads models {rows[-1].entry.name}",
    )


def _cells(row: _Row) -> tuple[str, ...]:
    from manyheads.report.units import count, number

    layer, cached = row.layer, row.stack.decoder is not None
    return (
        row.entry.name,
        str(row.entry.year),
        f"{layer.num_heads}/{row.kv_heads}" if row.kv_heads else str(layer.num_heads),
        str(layer.d_model),
        str(layer.head_dim),
        str(row.stack.layers),
        row.scheme,
        number(row.kv_bytes) + ("*" if row.windowed else "") if cached else "-",
        count(row.parameters).replace(" ", ""),
    )


def _facts(row: _Row) -> dict[str, object]:
    """What --json says of a model in the list."""
    layer = row.layer
    return {
        "name": row.entry.name,
        "title": row.entry.title,
        "aliases": list(row.entry.aliases),
        "year": row.entry.year,
        "month": row.entry.month,
        "scheme": row.scheme,
        "schemes": list(row.schemes),
        "windowed": row.windowed,
        "heads": layer.num_heads,
        "kv_heads": row.kv_heads,
        "d_model": layer.d_model,
        "head_dim": layer.head_dim,
        "v_head_dim": layer.v_head_dim,
        "layers": row.stack.layers,
        "kv_bytes_per_token_16bit": row.kv_bytes,
        "parameters": row.parameters,
    }


def _record(row: _Row) -> Report:
    entry = row.entry
    when = str(entry.year) if entry.month is None else f"{entry.year}-{entry.month:02d}"
    data = {
        **_facts(row),
        "published": dict(entry.published),
        "config": dict(entry.config),
        "sources": list(entry.sources),
        "notes": entry.notes,
    }
    return Report(
        title=f"{entry.title} ({entry.name}), {when}",
        tables=(_layers_table(row), _published_table(row), _sources_table(entry)),
        data={"schema": SCHEMA, "models": [data]},
        notes=(f"{entry.notes[0].upper()}{entry.notes[1:]}.",) if entry.notes else (),
        next_command=f"manyheads cost {entry.name}",
    )


def _layers_table(row: _Row) -> Table:
    """Layers whose attention is the same in one row, whatever their MLPs are."""
    from manyheads.spec import Cross
    from manyheads.spec.text import to_text

    times: dict[tuple[str, str], int] = {}
    for stack in row.stack.stacks:
        for block, count in stack.groups:
            for attention in block.attentions:
                key = ("cross" if isinstance(attention.source, Cross) else stack.role, to_text(attention))
                times[key] = times.get(key, 0) + count
    rows = tuple((f"{count} x", place, text) for (place, text), count in times.items())
    return Table("What is its attention?", (Column("layers"), Column("where"), Column("each")), rows)


def _published_table(row: _Row) -> Table:
    from manyheads.report.units import number

    published, here = row.entry.published, _facts(row)
    derived = {**here, "kv_heads": row.kv_heads or "none: a latent"}
    names = {
        "parameters": "parameters",
        "layers": "layers",
        "d_model": "width",
        "heads": "query heads",
        "kv_heads": "key/value heads",
        "head_dim": "head size",
        "v_head_dim": "value head size",
        "kv_bytes_per_token_16bit": "KV bytes a token, 16-bit",
    }

    def said(value: object) -> str:
        return number(value) if isinstance(value, int) else str(value)

    rows = []
    for key, name in names.items():
        if key in published or key in ("parameters", "kv_bytes_per_token_16bit"):
            stated = published.get(key, published.get("parameters_stated", "-") if key == "parameters" else "-")
            rows.append((name, said(stated), said(derived[key])))
    notes = published.get("notes", ())
    columns = (Column("figure"), Column("published", "right"), Column("from the config", "right"))
    return Table(
        "What is published, and what follows from the config?",
        columns,
        tuple(rows),
        tuple(f"{note[0].upper()}{note[1:]}." for note in notes) if isinstance(notes, list) else (),
    )


def _sources_table(entry: CensusEntry) -> Table:
    names = ", ".join(entry.aliases)
    rows = [("source", source) for source in entry.sources]
    if "parameters_source" in entry.published:
        rows.append(("exact count", str(entry.published["parameters_source"])))
    return Table("Where is this from?", (Column("what"), Column("where")), (*rows, ("also called", names)))
