"""Finding an entry of the library: by its key, or by words that it holds."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache

from manyheads.errors import ManyheadsError
from manyheads.facts.library import entries, source
from manyheads.facts.records import Citation, Convention, Entry, Fact, Formula, QuotedTable
from manyheads.quoting import shown

__all__ = ["UnknownFactError", "entry", "fact", "is_key_like", "nearest_keys", "search"]

_KEY_LIKE = re.compile(r"[ABCFN]\d+", re.IGNORECASE)
_TOKEN = re.compile(r"[^\W_]+(?:\.\d+)*|√|∞")
_THOUSANDS = re.compile(r"(?<=\d)[,_](?=\d{3}(?!\d))")
_SHORTEST_PREFIX = 4

_Weighted = tuple[tuple[str, int], ...]


class UnknownFactError(ManyheadsError, LookupError):
    """A key that the library does not hold; ``nearest`` are the keys most like it."""

    def __init__(self, key: str) -> None:
        self.nearest = nearest_keys(key)
        what = f"there is no fact {shown(key)} among {len(entries())}; the nearest keys are {', '.join(self.nearest)}"
        super().__init__(f"{what} (manyheads facts WORD searches)")


def fact(key: str) -> Fact:
    """The claim with this key ("A38", in either case); UnknownFactError, naming the nearest, when there is none."""
    found = _by_key().get(key.upper())
    if not isinstance(found, Fact):
        raise UnknownFactError(key)
    return found


def entry(key: str) -> Entry:
    """The claim, formula, convention or table with this key; UnknownFactError, naming the nearest, when there is none."""
    found = _by_key().get(key.upper())
    if found is None:
        raise UnknownFactError(key)
    return found


def is_key_like(word: str) -> bool:
    """Whether a word has the form of a key of claims, formulas or conventions: A38, f6."""
    return _KEY_LIKE.fullmatch(word) is not None


def nearest_keys(key: str, *, among: Iterable[str] | None = None) -> tuple[str, ...]:
    """The three keys most like ``key``, of the whole library or of the given ones."""
    from difflib import get_close_matches

    known = {each.upper(): each for each in (among if among is not None else (each.key for each in entries()))}
    near = get_close_matches(key.upper(), list(known), n=3, cutoff=0.3)
    return tuple(known[each] for each in near) or tuple(known.values())[:3]


def search(words: str) -> tuple[Entry, ...]:
    """The entries that hold every one of the words, the best first.

    Case, accents and a plural ending make no difference; a word of four letters or more also finds longer words that
    begin with it, at a lower rank. A claim, a name or a topic counts more than a remark or the title of a source.
    Words without a letter or digit find nothing.
    """
    wanted = _tokens(words)
    if not wanted:
        return ()
    found = []
    for place, (each, index) in enumerate(_indexed()):
        scores = [_score(word, index) for word in wanted]
        if min(scores) > 0:
            found.append((-sum(scores), place, each))
    return tuple(each for _, _, each in sorted(found, key=lambda ranked: ranked[:2]))


@cache
def _by_key() -> dict[str, Entry]:
    return {each.key.upper(): each for each in entries()}


@cache
def _indexed() -> tuple[tuple[Entry, dict[frozenset[str], int]], ...]:
    """Each entry with its words, as the forms that they are found by, and the weight of the best place of each."""
    indexed = []
    for each in entries():
        index: dict[frozenset[str], int] = {}
        for text, weight in _texts(each):
            for token in _tokens(text):
                forms = _forms(token)
                index[forms] = max(weight, index.get(forms, 0))
        indexed.append((each, index))
    return tuple(indexed)


def _score(word: str, index: dict[frozenset[str], int]) -> int:
    """Twice the weight of the best place that holds the word, once the weight where another word begins with it."""
    forms = _forms(word)
    begins = tuple(form for form in forms if len(form) >= _SHORTEST_PREFIX)
    best = 0
    for held, weight in index.items():
        if forms & held:
            best = max(best, 2 * weight)
        elif begins and any(form.startswith(begins) for form in held):
            best = max(best, weight)
    return best


def _texts(each: Entry) -> _Weighted:
    common = ((each.key, 8), (each.topic, 3), *_cited(each.sources))
    match each:
        case Fact():
            return (
                *common,
                (each.claim, 4),
                (each.right, 3),
                (each.verdict, 1),
                (each.aspect, 2),
                *_sums(each.arithmetic),
            )
        case Formula():
            meanings = tuple((meaning, 1) for _, meaning in each.symbols)
            return (*common, (each.name, 4), (each.condition, 2), *meanings, *_sums(each.worked))
        case Convention():
            return (*common, (each.name, 4), (each.practice, 3), (each.rule, 3))
        case QuotedTable():
            cells = tuple((str(cell), 1) for row in each.rows for cell in row)
            return (
                *common,
                (each.name, 4),
                (each.note, 2),
                (" ".join(each.columns), 2),
                *cells,
                *_sums(each.arithmetic),
            )


def _sums(lines: tuple[str, ...]) -> _Weighted:
    return tuple((line, 1) for line in lines)


def _cited(citations: tuple[Citation, ...]) -> _Weighted:
    records = (source(citation.source) for citation in citations)
    said = tuple((f"{record.key} {record.title} {' '.join(record.authors)}", 1) for record in records)
    return (*said, *((citation.where, 1) for citation in citations))


def _tokens(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", _THOUSANDS.sub("", text)).casefold()
    return _TOKEN.findall("".join(letter for letter in plain if not unicodedata.combining(letter)))


@cache
def _forms(token: str) -> frozenset[str]:
    """The token and what it may be the plural of: heads, head; biases, bias; queries, query."""
    forms = {token}
    if len(token) > 3 and token.endswith("s") and not token.endswith("ss"):
        forms.add(token[:-1])
        if token.endswith("es"):
            forms.add(token[:-2])
        if token.endswith("ies"):
            forms.add(token[:-3] + "y")
    return frozenset(forms)
