"""The census: published models by name, each with the fields of its config file and what is published about it.

The data lie in ``census.json``, one model a line. Nothing is read until the first question; then the file is parsed once.
Figures under ``published`` come from outside (a paper, another project's exact count), never from this package's own
sums: they are what those sums are tested against.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache

from manyheads.record import record

__all__ = ["CensusEntry", "census", "find", "names", "nearest"]


@record
class CensusEntry:
    """One published model.

    name       the slug a person would type: ``llama-2-70b``
    aliases    other names, hub ids among them: ``meta-llama/Llama-2-70b-hf``
    title      the name as its makers write it
    year       of the first release; month (1 to 12) where it is certain, else None
    config     the fields of the model's config.json that decide weights, attention and cache, in Hugging Face's spelling
    published  figures from outside. Always there: layers, d_model, heads, kv_heads, head_dim. Where published:
               v_head_dim; parameters (exact, each stored weight once) with parameters_source; parameters_stated (as a
               paper or the model's name rounds it, "6.7B"); active_parameters (a mixture's, by which embeddings count);
               kv_bytes_per_token_16bit (all layers at full length); notes
    sources    where config and figures come from
    notes      what a reader of the config should know, or ""
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    year: int
    month: int | None
    config: Mapping[str, object]
    published: Mapping[str, object]
    sources: tuple[str, ...]
    notes: str


@cache
def census() -> tuple[CensusEntry, ...]:
    """Every model of the census, oldest first."""
    with open(os.path.join(os.path.dirname(__file__), "census.json"), encoding="utf-8") as file:
        rows = json.load(file)
    return tuple(
        CensusEntry(**{**row, "aliases": tuple(row["aliases"]), "sources": tuple(row["sources"])}) for row in rows
    )


_DASHES = str.maketrans("_ :", "---")


def _plain(name: str) -> str:
    """Lower case, a dash for every separator, without the ``-hf`` of converted checkpoints."""
    return name.strip().lower().translate(_DASHES).removesuffix("-hf")


@cache
def _index() -> dict[str, CensusEntry]:
    """Names, aliases, and hub ids without their owner, all plain. The first to claim a spelling keeps it."""
    found: dict[str, CensusEntry] = {}
    for entry in census():
        found.setdefault(_plain(entry.name), entry)
    for entry in census():
        for alias in entry.aliases:
            found.setdefault(_plain(alias), entry)
            found.setdefault(_plain(alias.rpartition("/")[2]), entry)
    return found


def find(name: str) -> CensusEntry | None:
    """The model called ``name``, or None.

    Case, ``_``, spaces and ``:`` for ``-``, and a trailing ``-hf`` do not matter; a hub id's owner may be left out.
    """
    return _index().get(_plain(name))


def names() -> tuple[str, ...]:
    """The name of every model, oldest first."""
    return tuple(entry.name for entry in census())


def nearest(name: str, *, count: int = 3) -> list[str]:
    """Names of the census that look most like ``name``, best first; empty when none does. For error messages."""
    import difflib

    close = difflib.get_close_matches(_plain(name), list(_index()), n=4 * count, cutoff=0.6)
    return list(dict.fromkeys(_index()[spelling].name for spelling in close))[:count]
