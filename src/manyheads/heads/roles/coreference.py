"""Coreference: does a pronoun look at the word it stands for, rather than at another that stands there as well?

The sentences are templates of our own, in English, of two kinds: of people, with "he" and "she", and of things, with "it" and
"they". Each has two candidates and a pronoun that fits one of them; it is read with the candidates in both orders and with both
pronouns. Over these four readings each candidate stands in each place and is each time once the antecedent and once the
distractor, so where a word stands, and which word it is, cancel exactly: what is left of the difference is the pronoun's doing.

A unit is a template with a pair of candidates. No pair comes in two units, for a head may take to one name after "she" and not
to another by chance; a template comes in one unit of either half, so the units of a half share neither.
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
from manyheads.heads.attention_weights import AttentionWeights, measure_heads
from manyheads.heads.batches import longest_text

__all__ = ["KINDS", "UNITS", "Reading", "coreference_scores", "readings"]

KINDS = ("he, she", "it, they")
"""The pronouns of each kind of sentences; an antecedent is looked for in both."""
_PRONOUNS = (("she", "he"), ("they", "it"))
"""Of each kind the pronoun that fits the first of a pair, and that of the second."""
_PAIRS = (
    (
        ("Anna", "Tom"), ("Mary", "John"), ("Emma", "Peter"), ("Sarah", "Paul"), ("Laura", "David"), ("Susan", "Robert"),
        ("Julia", "Mark"), ("Alice", "George"), ("Helen", "Frank"), ("Maria", "Daniel"), ("Linda", "Richard"),
        ("Karen", "Steven"), ("Lucy", "James"), ("Kate", "Henry"), ("Rachel", "Simon"), ("Jane", "William"),
        ("Nancy", "Edward"), ("Diana", "Martin"), ("Claire", "Thomas"), ("Ruth", "Andrew"), ("Lisa", "Michael"),
        ("Sophie", "Jack"), ("Betty", "Arthur"), ("Grace", "Charles"),
    ),
    (
        ("boxes", "lamp"), ("books", "chair"), ("bottles", "table"), ("shoes", "bag"), ("plates", "clock"),
        ("flowers", "mirror"), ("candles", "radio"), ("tools", "ladder"), ("pictures", "carpet"), ("cups", "tray"),
        ("stones", "bench"), ("bricks", "cart"), ("knives", "pan"), ("papers", "desk"), ("toys", "basket"),
        ("curtains", "sofa"), ("pipes", "barrel"), ("coats", "suitcase"), ("jars", "vase"), ("boards", "wheel"),
        ("ropes", "tent"), ("pots", "stove"), ("letters", "camera"), ("cushions", "piano"),
    ),
)  # fmt: skip
_TEMPLATES = (
    (
        "{0} met {1} at the station because {2} had lost the keys.",
        "{0} sat next to {1} on the train, and {2} slept all the way.",
        "{0} waved to {1} from the garden before {2} went home.",
        "When {0} came to see {1} in the hospital, {2} was very tired.",
        "{0} phoned {1} on Sunday, since {2} wanted to talk about the house.",
        "{0} and {1} were late for school after {2} missed the bus.",
        "{0} lent the bicycle to {1} until {2} could buy another.",
        "Yesterday {0} played chess with {1}, and {2} won twice.",
        "{0} showed the letter to {1} while {2} was drinking tea.",
        "At the party {0} danced with {1} although {2} had hurt a foot.",
        "{0} lives near {1}, so {2} often walks over in the evening.",
        "{0} thanked {1} for the book, which {2} had read in a day.",
    ),
    (
        "The {0} stood beside the {1} until {2} fell over.",
        "The {0} and the {1} were in the hall when {2} caught fire.",
        "The {0} lay behind the {1}, where {2} got wet in the rain.",
        "We put the {0} near the {1} because {2} looked good there.",
        "Someone carried the {0} and the {1} upstairs before {2} broke.",
        "The {0} came with the {1}, but {2} did not fit into the car.",
        "Nobody touched the {0} or the {1} after {2} stopped working.",
        "I cleaned the {0} and the {1} again, since {2} still smelled of smoke.",
        "The shop sold the {0} and the {1} only when {2} became cheap.",
        "The {0} arrived before the {1}, though {2} cost much more.",
        "The storm moved the {0} towards the {1} until {2} hit the wall.",
        "We left the {0} next to the {1}, and in the morning {2} had gone.",
    ),
)
UNITS = len(_PAIRS[0])
"""Units of a kind: those of even number are the half that choices are made on."""
_READINGS = 4


@dataclass(frozen=True)
class Reading:
    """One sentence: its text, and where the pronoun, its antecedent and the distractor stand in it. `kind`: of KINDS; `unit`:
    the four readings of one unit of a kind belong together."""

    text: str
    pronoun: tuple[int, int]
    antecedent: tuple[int, int]
    distractor: tuple[int, int]
    kind: int
    unit: int


def readings() -> tuple[Reading, ...]:
    """All readings, the four of a unit in a row, those of a kind together."""
    made = []
    for (kind, pairs), unit in itertools.product(enumerate(_PAIRS), range(UNITS)):
        template = _TEMPLATES[kind][unit // 2]
        before, between, middle, _ = _split(template)
        for order, fits in itertools.product((0, 1), repeat=2):
            words, pronoun = pairs[unit][:: 1 - 2 * order], _PRONOUNS[kind][fits]
            starts = [len(before), len(before) + len(words[0]) + len(between)]
            places = [(start, start + len(word)) for start, word in zip(starts, words, strict=True)]
            begin = places[1][1] + len(middle)
            antecedent = fits if order == 0 else 1 - fits
            made.append(Reading(
                template.format(*words, pronoun), (begin, begin + len(pronoun)), places[antecedent], places[1 - antecedent],
                kind, unit,
            ))  # fmt: skip
    return tuple(made)


def _split(template: str) -> tuple[str, str, str, str]:
    before, rest = template.split("{0}")
    between, rest = rest.split("{1}")
    middle, after = rest.split("{2}")
    return before, between, middle, after


def coreference_scores(model: Any, tokenizer: Any, *, around: Frame = Frame()) -> tuple[tuple[Head, ...], np.ndarray]:  # noqa: B008
    """(heads, array (units, kinds, heads, 2)): the weight from the pronoun to its antecedent, and to the distractor; NaN where the
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
        return (), np.empty((UNITS, len(KINDS), 0, 2))
    groups = [list(group) for _, group in itertools.groupby(order, key=lambda at: len(aligned[at].ids))]
    batches = [{"input_ids": torch.tensor([aligned[at].ids for at in group])} for group in groups]

    def measure(attention: AttentionWeights, number: int) -> Tensor:
        return torch.stack([_weights(attention.weights[i], aligned[at]) for i, at in enumerate(groups[number])])

    heads, found = measure_heads(model, batches, measure, encoder_only=True)
    scores = np.full((len(asked), *found.shape[1:]), np.nan)
    scores[order] = found
    by_unit = scores.reshape(len(KINDS), UNITS, _READINGS, *scores.shape[1:]).mean(2)
    return heads, by_unit.swapaxes(0, 1)


def _weights(weights: Tensor, one: Aligned) -> Tensor:
    """(h, 2) of (h, t, s): what the pronoun's pieces give on average to the antecedent and to the distractor."""
    pronoun, *others = (list(own) for own in one.pieces)
    if not pronoun or not all(others):
        return weights.new_full((weights.shape[0], 2), torch.nan)
    return torch.stack([weights[:, pronoun][:, :, own].sum(-1).mean(-1) for own in others], -1)
