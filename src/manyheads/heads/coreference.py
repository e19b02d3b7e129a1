"""Coreference: does a pronoun look at the word it stands for, rather than at another that stands there as well?

The sentences are templates of our own, in English. Each has two candidates and a pronoun that fits one of them; it is read
with the candidates in both orders and with both pronouns. Over these four readings each candidate stands in each place and is
each time once the antecedent and once the distractor, so where a word stands, and which word it is, cancel exactly: what is
left of the difference is the pronoun's doing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyheads.heads.address import Head
from manyheads.heads.alignment import Aligned, Frame, align
from manyheads.heads.watching import Batch, Look, longest_text, watch

__all__ = ["Reading", "coreference", "readings"]

_PEOPLE = (("Anna", "Tom"), ("Mary", "John"), ("Emma", "Peter"), ("Sarah", "Paul"))
_THINGS = (("boxes", "lamp"), ("books", "chair"), ("bottles", "table"), ("shoes", "bag"))
# The pronoun that fits the first of a pair, and that of the second.
_TEMPLATES = (
    ("{0} met {1} at the station because {2} had lost the keys.", _PEOPLE, ("she", "he")),
    ("The {0} stood beside the {1} until {2} fell over.", _THINGS, ("they", "it")),
    ("{0} sat next to {1} on the train, and {2} slept all the way.", _PEOPLE, ("she", "he")),
    ("The {0} and the {1} were in the hall when {2} caught fire.", _THINGS, ("they", "it")),
    ("{0} waved to {1} from the garden before {2} went home.", _PEOPLE, ("she", "he")),
    ("The {0} lay behind the {1}, where {2} got wet in the rain.", _THINGS, ("they", "it")),
    ("When {0} came to see {1} in the hospital, {2} was very tired.", _PEOPLE, ("she", "he")),
    ("We put the {0} near the {1} because {2} looked good there.", _THINGS, ("they", "it")),
)
UNITS = len(_TEMPLATES) * len(_PEOPLE)
_READINGS = 4


@dataclass(frozen=True)
class Reading:
    """One sentence: its text, and where the pronoun, its antecedent and the distractor stand in it. `unit`: readings of one
    unit belong together; units of even and odd number use different templates."""

    text: str
    pronoun: tuple[int, int]
    antecedent: tuple[int, int]
    distractor: tuple[int, int]
    unit: int


def readings() -> tuple[Reading, ...]:
    """All readings, the four of a unit in a row."""
    made = []
    for (number, (template, pairs, pronouns)), pair in itertools.product(enumerate(_TEMPLATES), range(len(_PEOPLE))):
        unit = pair * len(_TEMPLATES) + number
        for order, fits in itertools.product((0, 1), repeat=2):
            words = pairs[pair] if order == 0 else pairs[pair][::-1]
            before, between, middle, _ = _split(template)
            starts = [len(before), len(before) + len(words[0]) + len(between)]
            places = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
            begin = places[1][1] + len(middle)
            antecedent = fits if order == 0 else 1 - fits
            made.append(Reading(
                template.format(*words, pronouns[fits]), (begin, begin + len(pronouns[fits])), places[antecedent],
                places[1 - antecedent], unit,
            ))  # fmt: skip
    return tuple(sorted(made, key=lambda reading: reading.unit))


def _split(template: str) -> tuple[str, str, str, str]:
    before, rest = template.split("{0}")
    between, rest = rest.split("{1}")
    middle, after = rest.split("{2}")
    return before, between, middle, after


def coreference(model: Any, tokenizer: Any, *, around: Frame = Frame()) -> tuple[tuple[Head, ...], np.ndarray]:  # noqa: B008
    """(heads, array (units, heads, 2)): the weight from the pronoun to its antecedent, and to the distractor; NaN where the
    tokenizer makes no piece of one of the three words, or where the model cannot read so many tokens; no heads where it can read
    none of the sentences.
    """
    asked = readings()
    aligned = [
        align(tokenizer, one.text, (one.pronoun, one.antecedent, one.distractor), around=around) for one in asked
    ]  # fmt: skip
    longest = longest_text(model, max(len(one.ids) for one in aligned))
    order = sorted(
        (at for at in range(len(asked)) if len(aligned[at].ids) <= longest), key=lambda at: len(aligned[at].ids)
    )
    if not order:
        return (), np.empty((UNITS, 0, 2))
    groups = [list(group) for _, group in itertools.groupby(order, key=lambda at: len(aligned[at].ids))]
    batches = [
        Batch(torch.tensor([aligned[at].ids for at in group]), context=[aligned[at] for at in group])
        for group in groups
    ]

    def measure(look: Look, batch: Batch) -> Tensor:
        return torch.stack([_weights(look.weights[i], one) for i, one in enumerate(batch.context)])

    heads, found = watch(model, batches, measure, encoder_only=True)
    scores = np.full((len(asked), *found.shape[1:]), np.nan)
    scores[order] = found
    return heads, scores.reshape(UNITS, _READINGS, *scores.shape[1:]).mean(1)


def _weights(weights: Tensor, one: Aligned) -> Tensor:
    """(h, 2) of (h, t, s): what the pronoun's pieces give on average to the antecedent and to the distractor."""
    pronoun, *others = (list(own) for own in one.pieces)
    if not pronoun or not all(others):
        return weights.new_full((weights.shape[0], 2), torch.nan)
    return torch.stack([weights[:, pronoun][:, :, own].sum(-1).mean(-1) for own in others], -1)
