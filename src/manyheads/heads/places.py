"""Where the heads of a model are: its attention modules as rows, with the addresses that people use for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head, by_layer, check_heads, format_head
from manyheads.models.door import Call, Door

__all__ = ["Heads", "Place", "Placing", "addresses", "is_staged", "place_of", "select", "stage_of"]

# Heads as callers give them: {layer: (head, head)} for a model of one stack, or addresses.
Heads = Mapping[int, Sequence[int]] | Iterable[Head]

_CROSS = re.compile(r"cross|encoder_attn|encdec|enc_dec", re.IGNORECASE)
_ENCODER = re.compile(r"(?:^|\.)(?:\w*_)?encoder\.")


class Place(NamedTuple):
    """One attention module: `path` is its name in the model, `stage` is "" but in encoder-decoders (`address.STAGES`)."""

    path: str
    layer: int
    stage: str
    heads: int
    kv_heads: int

    def head(self, number: int) -> Head:
        """The address of one of its heads."""
        return Head(self.layer, number, self.stage)


class Placing:
    """An observer that notes the places of a model, in the order in which they were called first."""

    def __init__(self, model: Any) -> None:
        self.staged = is_staged(model)
        self._found: dict[str, Place] = {}

    def __call__(self, call: Call, outputs: Tensor) -> None:
        if call.path not in self._found:
            stage = stage_of(call.path, staged=self.staged)
            self._found[call.path] = Place(call.path, call.layer, stage, outputs.shape[1], call.k.shape[1])

    def places(self, door: Door) -> tuple[Place, ...]:
        """What was found. ManyheadsError where two modules would have one address, or attention ran past the door."""
        if not self._found:
            raise ManyheadsError("no attention of the model was called through the door, so there is no head to judge")
        if door.outside:
            raise ManyheadsError(
                f"{len(door.outside)} attention modules do not pass through the door ({door.outside[0]}), so their heads "
                "cannot be told from the rest; valid: models whose every attention calls transformers' AttentionInterface"
            )
        seen: dict[tuple[str, int], str] = {}
        for place in self._found.values():
            other = seen.setdefault((place.stage, place.layer), place.path)
            if other != place.path:
                raise ManyheadsError(
                    f"{other} and {place.path} are both layer {place.layer}, so an address of a head would mean two; "
                    "hand over the part of the model that holds one of them"
                )
        order = {"encoder": 0, "decoder": 1, "cross": 2}
        return tuple(sorted(self._found.values(), key=lambda place: (order.get(place.stage, 0), place.layer)))


def is_staged(model: Any) -> bool:
    """Whether its heads are told apart by the kind of attention too: encoder-decoders."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def stage_of(path: str, *, staged: bool) -> str:
    """ "encoder", "decoder" or "cross" of a module of an encoder-decoder model; "" in a model that is not `staged`."""
    if not staged:
        return ""
    if _CROSS.search(path.rsplit(".", 1)[-1]):
        return "cross"
    return "encoder" if _ENCODER.search(path) else "decoder"


def place_of(places: Sequence[Place], head: Head) -> int:
    """The row of the place that holds `head`. ManyheadsError where there is none."""
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
