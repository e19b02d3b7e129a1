"""The statistics by their definitions, from whole matrices of probabilities and logits, one query and key at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["by_definition"]


def by_definition(
    probabilities: Any,
    logits: Any,
    ids: Sequence[Sequence[int]] | None,
    *,
    max_offset: int,
    members: frozenset[int] = frozenset(),
) -> dict[str, Any]:
    """Means over queries for one layer; probabilities and logits (b, h, t, s), -inf where a key is not seen."""
    p, logits = np.asarray(probabilities, dtype=np.float64), np.asarray(logits, dtype=np.float64)
    b, heads, t, s = p.shape
    seen = np.isfinite(logits)
    found: dict[str, Any] = {
        "entropy": np.zeros(heads), "distance": np.zeros(heads), "logit_std": np.zeros(heads), "sink_mass": np.zeros(heads),
        "offsets": np.zeros((heads, 2 * max_offset + 1)), "top_offsets": np.zeros((heads, 2 * max_offset + 1)),
    }  # fmt: skip
    names = ("self", "previous", "next", "first", "duplicate", "induction", "members")
    mass, eligible = {name: np.zeros(heads) for name in names}, dict.fromkeys(names, 0)
    attended = np.zeros(heads)
    for n in range(b):
        for i in range(t):
            kinds = {
                name: [j for j in range(s) if seen[n, 0, i, j] and is_of(name, i, j, ids, n, members)] for name in names
            }
            for name, keys in kinds.items():
                eligible[name] += bool(keys)
            for h in range(heads):
                row, own = p[n, h, i], seen[n, h, i]
                for name, keys in kinds.items():
                    mass[name][h] += row[keys].sum()
                found["entropy"][h] -= sum(x * math.log(x) for x in row if x > 0)
                found["distance"][h] += sum(x * abs(i - j) for j, x in enumerate(row))
                found["logit_std"][h] += logits[n, h, i, own].std()
                found["sink_mass"][h] += 1 - row.sum()
                attended[h] += row.sum()
                for j, x in enumerate(row):
                    found["offsets"][h, np.clip(i - j, -max_offset, max_offset) + max_offset] += x
                strongest = int(np.argmax(np.where(own, logits[n, h, i], -np.inf)))
                found["top_offsets"][h, np.clip(i - strongest, -max_offset, max_offset) + max_offset] += 1
    found = {name: total / (b * t) for name, total in found.items()}
    found["distance"] *= b * t / attended
    masses = {
        name: total / eligible[name] if eligible[name] else np.full(heads, np.nan) for name, total in mass.items()
    }
    return found | {"mass": masses, "eligible": eligible}


def is_of(name: str, i: int, j: int, ids: Sequence[Sequence[int]] | None, n: int, members: frozenset[int]) -> bool:
    """Whether key j is of this kind for query i."""
    if name in ("self", "previous", "next"):
        return i - j == {"self": 0, "previous": 1, "next": -1}[name]
    if name == "first":
        return j == 0
    if ids is None:
        return False
    own = ids[n]
    if name == "members":
        return own[j] in members
    if name == "duplicate":
        return j != i and own[j] == own[i]
    return 1 <= j <= i and own[j - 1] == own[i]
