"""Where the heads of a model are: its attention modules as rows, with the addresses that people use for them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.checkpoints.pruned import LayerHeads
from manyheads.errors import ManyheadsError
from manyheads.heads import batches
from manyheads.heads.address import Head, Heads, addresses, by_layer, check_heads, format_head
from manyheads.models.door.attentions import Attentions
from manyheads.models.door.door import Call, Door
from manyheads.quoting import shown

__all__ = ["Place", "Placing", "place_of", "seen", "select", "table"]


class Place(NamedTuple):
    """One attention module: `path` is its name in the model, `stage` is "" in a model of one stack. Of a module
    that several layers share there is one place: its heads are one set of weights.

    `heads` and `kv_heads` are what the module computes; `held` says which heads of a pruned model they were. Tables have a
    column for each original head, so that a column is the number of a head in every one of them.
    """

    path: str
    layer: int
    stage: str
    heads: int
    kv_heads: int
    held: LayerHeads | None = None

    @property
    def columns(self) -> int:
        """Heads that it first had."""
        return self.heads if self.held is None else self.held.heads

    @property
    def numbers(self) -> tuple[int, ...]:
        """The heads that work, by their original numbers."""
        return tuple(range(self.heads)) if self.held is None else tuple(sorted(self.held.kept))

    def slots(self, numbers: Iterable[int]) -> list[int]:
        """Where the module holds heads, which it must have."""
        return list(numbers) if self.held is None else self.held.at(numbers)

    @property
    def group(self) -> int:
        """Query heads that first shared a key/value head."""
        return self.heads // self.kv_heads if self.held is None else self.held.group

    def partners(self, number: int) -> tuple[int, ...]:
        """The heads that share the key/value head of `number`, itself among them."""
        return tuple(one for one in self.numbers if one // self.group == number // self.group)

    def head(self, number: int) -> Head:
        """The address of one of its heads."""
        return Head(self.layer, number, self.stage)


class Placing:
    """An observer that notes how many heads each attention of a model has."""

    def __init__(self, attentions: Attentions) -> None:
        self._stacks = {place.path: place for place in batches.places(attentions)}
        self._counts: dict[str, tuple[int, int]] = {}

    def __call__(self, call: Call, outputs: Tensor) -> None:
        self._counts.setdefault(call.path, (outputs.shape[1], call.k.shape[1]))

    def places(self, door: Door) -> tuple[Place, ...]:
        """What was called, stack by stack. ManyheadsError where attention ran past the door."""
        if not self._counts:
            raise ManyheadsError("no attention of the model was called through the door, so there is no head to judge")
        if door.outside:
            raise ManyheadsError(
                f"{len(door.outside)} attention modules do not pass through the door ({door.outside[0]}), so their heads "
                "cannot be told from the rest; valid: models whose every attention calls transformers' AttentionInterface"
            )
        return tuple(seen(one, *self._counts[path]) for path, one in self._stacks.items() if path in self._counts)


def seen(place: batches.Place, heads: int, kv_heads: int) -> Place:
    """An attention that was seen to compute so many heads. ManyheadsError where the record of removed heads says otherwise."""
    place.numbers(heads)
    return Place(place.path, place.layer, place.stage, heads, kv_heads, place.held)


def table(places: Sequence[Place]) -> Tensor:
    """(rows, columns), float64, NaN: a number for each head is to be put in."""
    return torch.full((len(places), max(place.columns for place in places)), torch.nan, dtype=torch.float64)


def place_of(places: Sequence[Place], head: Head) -> int:
    """The row of the place that holds `head`. ManyheadsError where there is none, naming the stages or heads that there are."""
    stages = list(dict.fromkeys(place.stage for place in places))
    if head.stage not in stages:
        valid = (
            f"valid stages: {', '.join(stage or 'none' for stage in stages)}"
            if any(stages)
            else "valid: addresses without a stage, such as 0:0"
        )
        what = f"stage {shown(head.stage)}" if head.stage else "head without a stage"
        raise ManyheadsError(f"{format_head(head)}: the model has no {what}; {valid}")
    for row, place in enumerate(places):
        if (place.stage, place.layer) == (head.stage, head.layer) and 0 <= head.head < place.columns:
            if head.head not in place.numbers:
                left = ", ".join(map(str, place.numbers))
                raise ManyheadsError(f"head {format_head(head)} was removed before; its layer still has {left}")
            return row
    raise ManyheadsError(f"there is no head {format_head(head)}; {_valid(places)}")


def select(places: Sequence[Place], heads: Heads | None) -> dict[int, tuple[int, ...]]:
    """{row of `places`: its heads} of the heads that are asked for; None means all.

    Raises ManyheadsError for a head that does not exist, saying what there is.
    """
    if heads is None:
        return {row: place.numbers for row, place in enumerate(places)}
    asked = addresses(heads)
    if not asked:
        raise ManyheadsError("an empty list of heads was given; leave it out for all of them")
    if not any(place.stage for place in places) and len({place.layer for place in places}) == max(
        place.layer for place in places
    ) + 1:  # fmt: skip
        counts = [place.columns for place in sorted(places, key=lambda place: place.layer)]
        check_heads(by_layer(head for head in asked if not head.stage), counts)
    found: dict[int, set[int]] = {}
    for head in asked:
        found.setdefault(place_of(places, head), set()).add(head.head)
    return {row: tuple(sorted(found[row])) for row in sorted(found)}


def _valid(places: Sequence[Place]) -> str:
    stages = list(dict.fromkeys(place.stage for place in places))
    said = []
    for stage in stages:
        layers = [place for place in places if place.stage == stage]
        most = max(place.columns for place in layers)
        named = f"{stage} " if stage else ""
        said.append(
            f"{named}layers {layers[0].layer} to {layers[-1].layer} with attention have {most} heads, 0 to {most - 1}"
        )
    return "; ".join(said)
