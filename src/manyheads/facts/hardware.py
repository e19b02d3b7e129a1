"""Accelerators and processors that a model can be priced for, with the figures their makers publish.

The data lie in ``hardware.json``, one device a line. The machine at hand is not here: its figures are measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache

from manyheads.errors import SpecError
from manyheads.quoting import shown
from manyheads.record import record

__all__ = ["Hardware", "find_hardware", "hardware"]


@record
class Hardware:
    """One device.

    name                           what a person types: ``h100``
    aliases                        other spellings
    title                          the maker's name, with the variant meant
    year                           of release
    kind                           gpu | tpu | cpu
    memory                         as the maker writes it, "80 GB"; None where it depends on the machine
    memory_bytes                   the same in bytes, GB = 10^9 and GiB = 2^30; drivers often report a little more
    bandwidth_bytes_per_second     of that memory, in theory
    peak_flops_per_second          by dtype (fp32, tf32, fp16, bf16, fp8; int8 counts integer operations), dense; a dtype
                                   that is not published is not there, and no dtype may be
    interconnect_bytes_per_second  to its neighbours, both directions summed; None where there is none or none is given
    source                         the maker's document and its year
    provenance                     ``published``
    notes                          which variant, what accumulates in what, or ""
    """

    name: str
    aliases: tuple[str, ...]
    title: str
    year: int
    kind: str
    memory: str | None
    memory_bytes: int | None
    bandwidth_bytes_per_second: int
    peak_flops_per_second: Mapping[str, int]
    interconnect_bytes_per_second: int | None
    source: str
    provenance: str
    notes: str


@cache
def hardware() -> tuple[Hardware, ...]:
    """Every device, oldest first."""
    with open(os.path.join(os.path.dirname(__file__), "hardware.json"), encoding="utf-8") as file:
        rows = json.load(file)
    return tuple(Hardware(**{**row, "aliases": tuple(row["aliases"])}) for row in rows)


def find_hardware(name: str) -> Hardware:
    """The device called ``name``; case, spaces and ``_`` for ``-`` do not matter.

    Raises SpecError, listing the valid names, when there is none.
    """
    wanted = _plain(name)
    for device in hardware():
        if wanted in {_plain(spelling) for spelling in (device.name, *device.aliases)}:
            return device
    valid = ", ".join(device.name for device in hardware())
    raise SpecError(f"no hardware is called {shown(name)}; valid names are {valid}")


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(" ", "-")
