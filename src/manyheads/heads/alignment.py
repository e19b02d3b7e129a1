"""Words and the pieces that a tokenizer makes of them: several, one, or none at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from manyheads.errors import ManyheadsError
from manyheads.models.load.tokenizing import tokenized

__all__ = ["Aligned", "Frame", "align", "frame", "word_attention"]


@dataclass(frozen=True)
class Frame:
    """What is put before and after the tokens of a text, and how that was decided (`said`, for the record)."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    said: str = "nothing is put around the text"


@dataclass(frozen=True)
class Aligned:
    """`ids`: the tokens of a sentence, frame included; `pieces`: of each word the places of its tokens, () for none."""

    ids: tuple[int, ...]
    pieces: tuple[tuple[int, ...], ...]


def frame(tokenizer: Any, *, bos: bool | None = None) -> Frame:
    """The frame that `tokenizer` puts around a text (bos=None), the same without what stands before (False), or with a
    beginning-of-text token in any case (True).

    Tools differ in it, and figures about heads with it, so reports say `said`. ManyheadsError where a token is asked for
    that the tokenizer has not.
    """
    if tokenizer is None:
        raise ManyheadsError("the roles of heads are read from text, and the model came without a tokenizer")
    plain = list(tokenized(tokenizer, "a", add_special_tokens=False)["input_ids"])
    full = list(tokenized(tokenizer, "a")["input_ids"])
    at = next((i for i in range(len(full)) if full[i : i + len(plain)] == plain), 0) if plain else 0
    before, after = tuple(full[:at]), tuple(full[at + len(plain) :])
    why = "as the tokenizer does"
    if bos is not None:
        why = "as asked"
        before = (before or (_first_token(tokenizer),)) if bos else ()
    return Frame(
        before, after, f"{_named(tokenizer, before, 'before')}, {_named(tokenizer, after, 'after')} the text ({why})"
    )


def _first_token(tokenizer: Any) -> int:
    for name in ("bos_token_id", "cls_token_id"):
        found = getattr(tokenizer, name, None)
        if found is not None:
            return int(found)
    raise ManyheadsError("a beginning-of-text token was asked for; the tokenizer has none (no bos_token, no cls_token)")


def _named(tokenizer: Any, ids: tuple[int, ...], place: str) -> str:
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(ids))] if ids else ["nothing"]
    return f"{' '.join(names)} {place}"


def align(tokenizer: Any, text: str, spans: Sequence[tuple[int, int]], *, around: Frame = Frame()) -> Aligned:
    """The tokens of `text` and which of them belong to the words at `spans` (start, end).

    A piece belongs to the word that most of its letters are of, the first where two have as many. A word has no piece
    where its span is empty, where the tokenizer drops its letters, or where its letters went into a neighbour's piece.
    """
    if getattr(tokenizer, "is_fast", False):
        read = tokenized(tokenizer, text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        ids, places = list(read["input_ids"]), [tuple(place) for place in read["offset_mapping"]]
    else:
        ids, places = _word_by_word(tokenizer, text, spans)
    owners: list[int | None] = [None] * max((end for _, end in spans), default=0)
    for word in reversed(range(len(spans))):  # where spans share letters, these are the first one's
        begin, end = spans[word]
        owners[begin:end] = [word] * (end - begin)
    pieces: list[list[int]] = [[] for _ in spans]
    for piece, (start, end) in enumerate(places):
        letters = Counter(owner for owner in owners[start:end] if owner is not None)
        if letters:
            word = min(letters, key=lambda each: (-letters[each], each))
            pieces[word].append(piece + len(around.before))
    return Aligned((*around.before, *ids, *around.after), tuple(tuple(own) for own in pieces))


def _word_by_word(
    tokenizer: Any, text: str, spans: Sequence[tuple[int, int]]
) -> tuple[list[int], list[tuple[int, int]]]:
    """For tokenizers that do not say where their pieces stand: each word for itself, with the space before it."""
    ids, places, begun = [], [], 0
    for start, end in spans:
        if end <= start:
            continue
        for token in tokenized(tokenizer, text[begun:end], add_special_tokens=False)["input_ids"]:
            ids.append(int(token))
            places.append((start, end))
        begun = end
    return ids, places


def word_attention(weights: Tensor, pieces: Sequence[Sequence[int]]) -> Tensor:
    """Attention between words, (h, w, w) from that between tokens, (h, t, s).

    To a word: the sum over its pieces; from a word: their mean. Words without a piece give and get nothing. Source: Clark
    et al. 2019, arXiv 1906.04341, section 4.1.
    """
    belongs = weights.new_zeros(len(pieces), weights.shape[-1])
    for word, own in enumerate(pieces):
        belongs[word, list(own)] = 1.0
    rows = belongs / belongs.sum(-1, keepdim=True).clamp(min=1.0)
    return rows @ weights @ belongs.T
