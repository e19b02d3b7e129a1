"""Runs in a row of layers: what repeats, with the shortest period that covers most."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TypeVar

    _T = TypeVar("_T", bound=Hashable)

__all__ = ["LONGEST_PERIOD", "runs"]


# Real models repeat after at most a few dozen layers; the limit keeps the search linear in the number of layers.
LONGEST_PERIOD = 64


def runs(items: Sequence[_T]) -> list[tuple[tuple[_T, ...], int]]:
    """`items` as (period, times) in a row; what does not repeat comes as a run of its own, once.

    At each place the period that covers most is taken, the shortest where several cover as much:
    L L G L L G L L -> ((L, L, G), 2), ((L,), 2).
    """
    numbers: dict[_T, int] = {}
    row = [numbers.setdefault(item, len(numbers)) for item in items]
    found: list[tuple[tuple[_T, ...], int]] = []
    alone: list[_T] = []
    index = 0
    while index < len(row):
        period, times = _best(row, index)
        if times > 1:
            if alone:
                found.append((tuple(alone), 1))
                alone = []
            found.append((tuple(items[index : index + period]), times))
        else:
            alone.append(items[index])
        index += period * times
    if alone:
        found.append((tuple(alone), 1))
    return found


def _best(row: list[int], index: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, min(LONGEST_PERIOD, (len(row) - index) // 2) + 1):
        if row[index] != row[index + period]:
            continue
        unit, times = row[index : index + period], 1
        while row[index + times * period : index + (times + 1) * period] == unit:
            times += 1
        if times > 1 and period * times > best[0] * best[1]:
            best = (period, times)
    return best
