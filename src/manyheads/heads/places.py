"""Where the heads of a model are: its attention modules as rows, with the addresses that people use for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from manyheads.checkpoints.files import shown
from manyheads.errors import ManyheadsError
from manyheads.heads import batches
from manyheads.heads.address import Head, by_layer, check_heads, format_head
from manyheads.models.door import Call, Door
from manyheads.models.door_attentions import Attentions

__all__ = ["Heads", "Place", "Placing", "addresses", "place_of", "select"]

# Heads as callers give them: {layer: (head, head)} for a model of one stack, or addresses.
Heads = Mapping[int, Sequence[int]] | Iterable[Head]


class Place(NamedTuple):
    """One attention module: `path` is its name in the model, `stage` is "" in a model of one stack. Of a module
    that several layers share there is one place: its heads are one set of weights."""

    path: str
    layer: int
    stage: str
    heads: int
    kv_heads: int

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

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
        return tuple(
            Place(path, one.layer, one.stage, *self._counts[path])
            for path, one in self._stacks.items()
            if path in self._counts
        )


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
        if (place.stage, place.layer) == (head.stage, head.layer) and 0 <= head.head < place.heads:
            return row
    raise ManyheadsError(f"there is no head {format_head(head)}; {_valid(places)}")


def select(places: Sequence[Place], heads: Heads | None) -> dict[int, tuple[int, ...]]:
    """{row of `places`: its heads} of the heads that are asked for; None means all.

    Raises ManyheadsError for a head that does not exist, saying what there is.
    """
    if heads is None:
        return {row: tuple(range(place.heads)) for row, place in enumerate(places)}
    asked = addresses(heads)
    if not asked:
        raise ManyheadsError("an empty list of heads was given; leave it out for all of them")
    if not any(place.stage for place in places) and len({place.layer for place in places}) == max(
        place.layer for place in places
    ) + 1:  # fmt: skip
        counts = [place.heads for place in sorted(places, key=lambda place: place.layer)]
        check_heads(by_layer(head for head in asked if not head.stage), counts)
    found: dict[int, set[int]] = {}
    for head in asked:
        found.setdefault(place_of(places, head), set()).add(head.head)
    return {row: tuple(sorted(found[row])) for row in sorted(found)}


def addresses(heads: Heads) -> list[Head]:
    """The heads of a mapping of layers, or of a list of addresses."""
    if isinstance(heads, Mapping):
        return [Head(layer, number) for layer, numbers in heads.items() for number in numbers]
    return [Head(*head) for head in heads]


def _valid(places: Sequence[Place]) -> str:
    stages = list(dict.fromkeys(place.stage for place in places))
    said = []
    for stage in stages:
        layers = [place for place in places if place.stage == stage]
        most = max(place.heads for place in layers)
        named = f"{stage} " if stage else ""
        said.append(
            f"{named}layers {layers[0].layer} to {layers[-1].layer} with attention have {most} heads, 0 to {most - 1}"
        )
    return "; ".join(said)
