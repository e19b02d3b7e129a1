"""Syntax: does a head look from a word to the word that governs it, or back? Judged on a treebank as Clark et al. did.

For a relation and a head, the word that gets most attention from the dependent (or from the governor) must be the other end.
The control is the best fixed offset ("the governor is the next word but one"), as good as blind guessing gets. Offsets,
directions and the head that a relation is shown with are chosen on one half of the sentences; all figures are of the other.

    accuracy = instances whose most attended other word is the right one / instances

In a causal model a word sees only what comes before: only instances whose target does are counted, for both. Source: Clark et
al. 2019, arXiv 1906.04341, section 4.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.heads.address import Head
from manyheads.heads.alignment import Aligned, Frame, align, word_attention
from manyheads.heads.attention_weights import AttentionWeights, measure_heads
from manyheads.heads.batches import longest_text
from manyheads.heads.left_out import LeftOut, present
from manyheads.heads.roles.conllu import Sentence
from manyheads.heads.significance import binomial_tail, wilson
from manyheads.models.load.tokenizing import check_texts

__all__ = ["DIRECTIONS", "LEAST_INSTANCES", "Hits", "RelationScores", "collect", "judge", "too_rare"]

DIRECTIONS = ("dependent to governor", "governor to dependent")
LEAST_INSTANCES = 20
"""A relation is tested where each half has as many instances."""
_FARTHEST = 10
_AT_ONCE = 16
_LEFT_OUT = frozenset({"punct", "root", "dep"})


@dataclass(frozen=True, eq=False)
class Hits:
    """What every head did with every instance of a relation.

    heads      the heads, in the order of the axis
    relation   of each instance its relation, without subtype
    sentence   the number of its sentence in what was given
    offset     where the governor stands, in words from the dependent
    counted    (instances, directions): whether the target could be seen
    right      (instances, heads, directions): whether the most attended word was the right one
    left_out   sentences and relations that are not among the instances, and why
    """

    heads: tuple[Head, ...]
    relation: np.ndarray
    sentence: np.ndarray
    offset: np.ndarray
    counted: np.ndarray
    right: np.ndarray
    left_out: tuple[LeftOut, ...] = ()


@dataclass(frozen=True, eq=False)
class RelationScores:
    """One relation, all heads; arrays are (heads,) unless said.

    direction     0 or 1 of DIRECTIONS, the better one on the sentences that it was chosen on
    chosen        accuracy there, by which heads are ranked; `chosen_control` that of the offset
    score, null   accuracy on the other half, of the head and of the best fixed offset
    offset        that offset, from the dependent to the governor, by direction (2,); 0 for a direction with too few instances
    low, high     Wilson's 95% interval of the score
    p_value       of the exact one-sided sign test on instances where just one of the two is right (McNemar)
    instances     counted on the other half, by direction (2,)
    """

    relation: str
    direction: np.ndarray
    chosen: np.ndarray
    chosen_control: np.ndarray
    score: np.ndarray
    null: np.ndarray
    offset: tuple[int, int]
    low: np.ndarray
    high: np.ndarray
    p_value: np.ndarray
    instances: tuple[int, int]


def collect(model: Any, tokenizer: Any, sentences: Sequence[Sentence], *, around: Frame = Frame()) -> Hits:  # noqa: B008
    """Run `sentences` through the model and note what every head of its (encoder's) self-attention looked at."""
    check_texts(tokenizer, ["\n".join(one.text for one in sentences)])
    aligned = [align(tokenizer, one.text, one.spans, around=around) for one in sentences]
    longest = longest_text(model, 1 << 30)
    short = [at for at, one in enumerate(aligned) if len(one.ids) <= longest]
    usable = [at for at in short if len(_instances(sentences[at], aligned[at])[0])]
    if not usable:
        raise ManyheadsError(_none_usable(len(sentences), aligned, longest))
    left_out = _left_out(sentences, aligned, short, usable, longest)
    usable.sort(key=lambda at: len(aligned[at].ids))
    groups = []
    for _, group in itertools.groupby(usable, key=lambda at: len(aligned[at].ids)):
        members = list(group)
        for start in range(0, len(members), _AT_ONCE):
            groups.append(members[start : start + _AT_ONCE])
    batches = [{"input_ids": torch.tensor([aligned[at].ids for at in group])} for group in groups]
    causal: list[bool] = []

    def measure(attention: AttentionWeights, number: int) -> Tensor:
        causal.append(not attention.two_sided)
        parts = enumerate(groups[number])
        return torch.cat([_right(attention.weights[i], sentences[at], aligned[at]) for i, at in parts])

    heads, right = measure_heads(model, batches, measure, encoder_only=True)
    each = [(at, *_instances(sentences[at], aligned[at])) for at in usable]
    dependents, governors = (np.concatenate([one[side] for one in each]) for side in (1, 2))
    back = np.stack([governors < dependents, dependents < governors], 1)
    return Hits(
        heads, np.concatenate([_relations(sentences[at], words) for at, words, _ in each]),
        np.concatenate([np.full(len(words), at) for at, words, _ in each]), governors - dependents,
        back if all(causal) else np.ones_like(back), right.astype(bool), left_out,
    )  # fmt: skip


def _left_out(
    sentences: Sequence[Sentence], aligned: Sequence[Aligned], short: Sequence[int], usable: Sequence[int], longest: int
) -> tuple[LeftOut, ...]:
    """Sentences that are too long or have nothing to judge, and relations between words of which one has no piece."""
    every = len(sentences)
    relations = sum(_between_words(sentences[at], word) for at in short for word in range(len(sentences[at].words)))
    judged = sum(len(_instances(sentences[at], aligned[at])[0]) for at in usable)
    return present(
        LeftOut("sentences", every - len(short), every, f"longer than the {longest:,} tokens that the model reads"),
        LeftOut(
            "sentences", len(short) - len(usable), every,
            "no relation in them between two words that the tokenizer makes pieces of"
        ),
        LeftOut(
            "relations", relations - judged, relations, "the tokenizer makes no piece of a word at one of the two ends"
        ),
    )  # fmt: skip


def _between_words(sentence: Sentence, word: int) -> bool:
    """Whether a word has a governor and a relation to it that is judged."""
    return sentence.heads[word] >= 0 and _plain(sentence.relations[word]) not in _LEFT_OUT


def _none_usable(count: int, aligned: Sequence[Aligned], longest: int) -> str:
    """Why no sentence can be judged."""
    too_long = sum(len(one.ids) > longest for one in aligned)
    return (
        f"none of the {count} sentences can be judged: {too_long} are longer than the {longest:,} tokens that the model reads, "
        f"and {count - too_long} have no relation between two words that the tokenizer makes pieces of"
    )


def _instances(sentence: Sentence, aligned: Aligned) -> tuple[np.ndarray, np.ndarray]:
    """(dependents, governors) of the pairs that are judged: both have pieces, and the relation is one between words."""
    pairs = [
        (word, head) for word, head in enumerate(sentence.heads)
        if _between_words(sentence, word) and aligned.pieces[word] and aligned.pieces[head]
    ]  # fmt: skip
    both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _relations(sentence: Sentence, dependents: np.ndarray) -> np.ndarray:
    return np.array([_plain(sentence.relations[word]) for word in dependents])


def _plain(relation: str) -> str:
    return relation.split(":", maxsplit=1)[0]


def _right(weights: Tensor, sentence: Sentence, aligned: Aligned) -> Tensor:
    """(instances, h, 2) of (h, t, s): 1 where the word most attended from one end is the other end, oneself not counted."""
    between = word_attention(weights, aligned.pieces)
    between.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
    without = [word for word, own in enumerate(aligned.pieces) if not own]
    between[:, :, without] = -1.0
    top, most = between.max(-1)
    most = most.masked_fill(top <= 0, -1)  # who gives nothing to other words points at none, not at the first
    dependents, governors = (torch.from_numpy(side).to(most.device) for side in _instances(sentence, aligned))
    right = torch.stack([most[:, dependents] == governors, most[:, governors] == dependents], -1)
    return right.transpose(0, 1)


def judge(
    hits: Hits, *, chosen_on: Sequence[int], scored_on: Sequence[int], least: int = LEAST_INSTANCES
) -> tuple[RelationScores, ...]:
    """Each relation with at least `least` instances in both sets of sentences: choices made on one, figures from the other."""
    choosing, scoring = (np.isin(hits.sentence, np.asarray(list(each))) for each in (chosen_on, scored_on))
    if set(chosen_on) & set(scored_on):
        raise ManyheadsError("sentences that heads are chosen on and scored on overlap; expected two separate sets")
    judged = []
    for relation, _ in Counter(hits.relation.tolist()).most_common():
        of_it = hits.relation == relation
        enough = [(each & of_it)[:, None] & hits.counted for each in (choosing, scoring)]
        directions = [d for d in (0, 1) if min(int(each[:, d].sum()) for each in enough) >= least]
        if directions:
            judged.append(_judged(hits, relation, *enough, directions=directions))
    return tuple(judged)


def too_rare(hits: Hits, judged: Sequence[RelationScores]) -> tuple[str, ...]:
    """The relations that have instances and were not judged, in alphabetical order."""
    return tuple(sorted(set(hits.relation.tolist()) - {one.relation for one in judged}))


def _judged(
    hits: Hits, relation: str, choosing: np.ndarray, scoring: np.ndarray, *, directions: Sequence[int]
) -> RelationScores:
    """`choosing` and `scoring`: (instances, directions), which instances count for what; only `directions` have enough."""
    each = [_one_direction(hits, d, choosing[:, d], scoring[:, d]) for d in directions]
    best = np.stack([one["chosen"] - one["chosen_control"] for one in each]).argmax(0)
    heads = np.arange(len(hits.heads))
    names = ("chosen", "chosen_control", "score", "null", "low", "high", "p_value")
    taken = {name: np.stack([one[name] for one in each])[best, heads] for name in names}
    offsets, counts = [0, 0], [0, 0]
    for direction, one in zip(directions, each, strict=True):
        offsets[direction], counts[direction] = one["offset"], one["instances"]
    return RelationScores(
        relation=relation, direction=np.array(directions)[best], offset=(offsets[0], offsets[1]),
        instances=(counts[0], counts[1]), **taken,
    )  # fmt: skip


def _one_direction(hits: Hits, direction: int, choosing: np.ndarray, scoring: np.ndarray) -> dict[str, Any]:
    far = [offset for offset in range(-_FARTHEST, _FARTHEST + 1) if offset]
    offset = max(far, key=lambda each: (int((hits.offset[choosing] == each).sum()), -abs(each)))
    right, guessed = hits.right[scoring][:, :, direction], hits.offset[scoring] == offset
    heads = right.shape[1]
    alone = (right & ~guessed[:, None]).sum(0)
    other = (~right & guessed[:, None]).sum(0)
    intervals = [wilson(int(count), len(right)) for count in right.sum(0)]
    chosen_control = float((hits.offset[choosing] == offset).mean())
    return {
        "chosen": hits.right[choosing][:, :, direction].mean(0), "chosen_control": np.full(heads, chosen_control),
        "score": right.mean(0), "null": np.full(heads, float(guessed.mean())),
        "low": np.array([low for low, _ in intervals]), "high": np.array([high for _, high in intervals]),
        "p_value": np.array([binomial_tail(int(a), int(a + b)) for a, b in zip(alone, other, strict=True)]),
        "offset": offset, "instances": len(right),
    }  # fmt: skip
