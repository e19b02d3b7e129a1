"""CoNLL-U, as the treebanks of Universal Dependencies are written: sentences, words, gold heads and relations."""

from __future__ import annotations

import os
from dataclasses import dataclass

from manyheads.checkpoints.files import read_small
from manyheads.errors import CheckpointError, ManyheadsError
from manyheads.quoting import shown, shown_name

__all__ = ["Sentence", "parse_conllu", "read_conllu"]

_FIELDS = 10
_ROOT = -1
_MOST_BYTES = 1 << 26  # a thousand sentences are enough


@dataclass(frozen=True)
class Sentence:
    """One sentence.

    words      its syntactic words, in order
    heads      of each word the word that governs it, counted from 0; -1 for the root
    relations  of each word its relation to that word, subtypes included ("nsubj:pass")
    text       the sentence as it is written
    spans      where each word stands in it, (start, end); an empty span for a word that is not written by itself, as the
               two words in German "zum"
    line       the line of the file where it begins, from 1
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    text: str
    spans: tuple[tuple[int, int], ...]
    line: int = 0


def read_conllu(path: str) -> tuple[Sentence, ...]:
    """The sentences of a file. Raises ManyheadsError, one line with the line's number, for what is no CoNLL-U."""
    try:
        data = read_small(path, wanted="a CoNLL-U file", most=_MOST_BYTES)
    except CheckpointError as error:
        raise ManyheadsError(str(error)) from None
    name = shown_name(os.path.basename(path))
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ManyheadsError(f"{name}, line {line}: byte {data[error.start]:#04x} is no UTF-8") from None
    return parse_conllu(text, named=name)


def parse_conllu(text: str, *, named: str = "CoNLL-U") -> tuple[Sentence, ...]:
    """As `read_conllu`, of text. Empty nodes (8.1) are passed over; a range (1-2) says how its words are written.

    Lines may end as in Windows, and the last one without an end. A sentence may have several roots; a word that governs
    itself, however far around, is an error.
    """
    sentences, rows = [], []
    for number, whole in enumerate([*text.split("\n"), ""], 1):
        line = whole.rstrip("\r")
        if line.startswith("#"):
            continue
        if line.strip(" "):
            rows.append((number, line))
        elif rows:
            sentences.append(_sentence(rows, named))
            rows = []
    if not sentences:
        raise ManyheadsError(f"{named}: no sentence in it; valid: CoNLL-U, ten fields a line, tabs between them")
    return tuple(sentences)


@dataclass
class _Building:
    """What is known of a sentence while its lines are read; `ranges`: (first word, last word, where it begins, form)."""

    words: list[str]
    heads: list[int]
    relations: list[str]
    lines: list[int]
    spans: list[tuple[int, int]]
    ranges: list[tuple[int, int, int, str]]
    text: str = ""


def _sentence(rows: list[tuple[int, str]], named: str) -> Sentence:
    made = _Building([], [], [], [], [], [])
    for number, line in rows:
        where = f"{named}, line {number}"
        fields = line.split("\t")
        if len(fields) != _FIELDS:
            raise ManyheadsError(f"{where}: {len(fields)} fields; expected {_FIELDS} with tabs between them")
        if "." in fields[0] and all(part.isdecimal() for part in fields[0].split(".", 1)):
            continue
        if "-" in fields[0]:
            _range(made, fields, where)
        else:
            _word(made, fields, number, where)
    _check(made, rows[-1][0], named)
    for written in made.ranges:
        _spread(made, *written)
    text = made.text.rstrip(" ")
    words, heads, relations = tuple(made.words), tuple(made.heads), tuple(made.relations)
    return Sentence(words, heads, relations, text, tuple(made.spans), rows[0][0])


def _check(made: _Building, last_line: int, named: str) -> None:
    count = len(made.words)
    if not count:
        raise ManyheadsError(
            f"{named}, line {last_line}: the sentence has no word; expected a line for each, from 1 on"
        )
    if made.ranges and made.ranges[-1][1] > count:
        raise ManyheadsError(
            f"{named}, line {last_line}: a range ends with word {made.ranges[-1][1]}, after {count} words"
        )
    for word, (head, number) in enumerate(zip(made.heads, made.lines, strict=True)):
        if head >= count or head == word:
            raise ManyheadsError(
                f"{named}, line {number}: the head of word {word + 1} is {head + 1}; expected 0 for the root, or another "
                f"of the {count} words"
            )
    round_and_round = _cycle(made.heads)
    if round_and_round:
        around = [str(word + 1) for word in round_and_round[:5]] + ["..."] * (len(round_and_round) > 5)
        path = " to ".join([*around, around[0]])
        raise ManyheadsError(
            f"{named}, line {made.lines[round_and_round[0]]}: the heads go in a circle ({path}); expected a way from each "
            "word to a root"
        )


def _cycle(heads: list[int]) -> list[int]:
    """The words of a circle of heads, the first one first; none where each word has a way to a root."""
    reaches = [False] * len(heads)
    for start in range(len(heads)):
        way: dict[int, None] = {}
        word = start
        while word != _ROOT and not reaches[word]:
            if word in way:
                around = list(way)
                around = around[around.index(word) :]
                at = around.index(min(around))
                return around[at:] + around[:at]
            way[word] = None
            word = heads[word]
        for each in way:
            reaches[each] = True
    return []


def _range(made: _Building, fields: list[str], where: str) -> None:
    first, _, last = fields[0].partition("-")
    begin, end = _count(first, "id", where), _count(last, "id", where)
    if made.ranges and made.ranges[-1][1] >= begin:
        raise ManyheadsError(
            f"{where}: the range {shown_name(fields[0])} begins inside {made.ranges[-1][0]}-{made.ranges[-1][1]}; expected ranges that do "
            "not overlap"
        )
    if begin != len(made.words) + 1 or end < begin:
        raise ManyheadsError(
            f"{where}: the range {shown_name(fields[0])} stands before word {len(made.words) + 1}; expected one that begins with it"
        )
    made.ranges.append((begin, end, len(made.text), fields[1]))
    made.text += fields[1] + _space(fields)


def _word(made: _Building, fields: list[str], number: int, where: str) -> None:
    word = _count(fields[0], "id", where)
    if word != len(made.words) + 1:
        raise ManyheadsError(f"{where}: word {word} follows word {len(made.words)}; expected {len(made.words) + 1}")
    head = _count(fields[6], "head", where)
    made.words.append(fields[1])
    made.heads.append(head - 1 if head else _ROOT)
    made.relations.append(fields[7])
    made.lines.append(number)
    start = len(made.text)
    if made.ranges and word <= made.ranges[-1][1]:
        made.spans.append((start, start))
        return
    made.spans.append((start, start + len(fields[1])))
    made.text += fields[1] + _space(fields)


def _spread(made: _Building, first: int, last: int, start: int, form: str) -> None:
    """Give the words of a range their letters, where these make up its form; else none is written by itself."""
    if "".join(made.words[first - 1 : last]) != form:
        return
    for word in range(first - 1, last):
        made.spans[word] = (start, start + len(made.words[word]))
        start += len(made.words[word])


def _space(fields: list[str]) -> str:
    return "" if "SpaceAfter=No" in fields[9].split("|") else " "


def _count(text: str, what: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 6:
        raise ManyheadsError(f"{where}: the {what} {shown(text, 20)} is no whole number")
    return int(text)
