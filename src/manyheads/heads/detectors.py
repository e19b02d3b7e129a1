"""What a head does with ordinary text: one score for each role and window, and beside it what the same window gives a head
that does not have the role.

Shuffling the text would be no control here: positions, delimiters, duplicates stay in place, and so do such heads. The
controls are

    other queries     what the same keys get from the other queries that see them, which have not this relation to them: a
                      key that everybody looks at (a sink) proves nothing about the pair; or what an even spread would
                      give them, if that is more, as for queries that see few keys
    random keys       as many keys drawn at random among those that the query sees, the first one apart: their expected
                      share, exactly, without drawing
    second token      the key beside the first one

A head that spreads its weight evenly equals all three and so plays no role, however large the set of keys.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.heads.watching import Look

__all__ = [
    "FARTHEST",
    "TEXT_MEASURES",
    "Vocabulary",
    "against_others",
    "against_others_at",
    "against_random_keys",
    "measure_text",
    "vocabulary",
]

FARTHEST = 8
"""Fixed offsets are looked for up to this many tokens away."""

OFFSETS = tuple(range(-FARTHEST, FARTHEST + 1))
TEXT_MEASURES = (
    *(f"mass {offset:+d}" for offset in OFFSETS), *(f"peak {offset:+d}" for offset in OFFSETS), "first token", "delimiter",
    "rare token", "duplicate token",
)  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """Token ids of the texts that are read: `delimiters` (punctuation, line ends, the model's own marks between texts) and
    `rare`: those that come once in all the texts together."""

    delimiters: frozenset[int]
    rare: frozenset[int]


def vocabulary(tokenizer: Any, ids: Sequence[int], *, marks: Iterable[int] = ()) -> Vocabulary:
    """Which of `ids` are delimiters and which are rare; `marks`: separators that the model puts around texts."""
    counts = Counter(ids)
    written = {token: str(tokenizer.decode([token])) for token in counts}
    delimiters = {token for token, text in written.items() if _is_delimiter(text)}
    return Vocabulary(
        frozenset(delimiters | set(marks)),
        frozenset(token for token, count in counts.items() if count == 1 and token not in delimiters),
    )


def _is_delimiter(text: str) -> bool:
    """Line ends, and pieces all of punctuation (Unicode's categories P)."""
    bare = text.strip(" ")
    if not bare:
        return False
    return bool(bare) and all(letter in "\r\n" or unicodedata.category(letter).startswith("P") for letter in bare)


def against_others(weights: Tensor, visible: Tensor, pattern: Tensor) -> tuple[Tensor, Tensor]:
    """(score, control) of a pattern of pairs, each (b, h): the mean, over the queries that have a key in the pattern, of the
    weight on those keys; and the larger of two means over the same pairs: what these keys get on average from the queries that
    see them and have no such relation to them, and what they would get if the query spread its weight evenly.

    weights (b, h, t, s), visible and pattern broadcast to it. NaN where no query has a key with other viewers.
    """
    inside, outside = visible & pattern, visible & ~pattern
    viewers = outside.sum(-2, keepdim=True)
    usual = (weights * outside).sum(-2, keepdim=True) / viewers.clamp(min=1)
    inside = inside & (viewers > 0)
    queries = inside.any(-1).sum(-1)
    even = inside.sum(-1) / visible.sum(-1).clamp(min=1) * weights.sum(-1)
    control = torch.maximum((usual * inside).sum((-1, -2)), even.sum(-1))
    return _mean((weights * inside).sum((-1, -2)), queries), _mean(control, queries)


def against_others_at(weights: Tensor, visible: Tensor, diagonals: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """`against_others` of the patterns column - row == d for each d of `diagonals`, along the diagonals alone."""
    b, h = weights.shape[:2]
    total, viewers = weights.sum(-2), visible.sum(-2)
    even = weights.sum(-1) / visible.sum(-1).clamp(min=1)
    found = []
    for d in diagonals:
        there = visible.diagonal(offset=d, dim1=-2, dim2=-1)
        own = weights.diagonal(offset=d, dim1=-2, dim2=-1)
        columns, rows = (slice(max(first, 0), max(first, 0) + there.shape[-1]) for first in (d, -d))
        others = viewers[..., columns] - there.long()
        there = there & (others > 0)
        usual = (total[..., columns] - own) / others.clamp(min=1)
        control = torch.maximum((usual * there).sum(-1), (even[..., rows] * there).sum(-1))
        queries = there.sum(-1)
        pair = _mean((own * there).sum(-1), queries), _mean(control, queries)
        found.append((pair[0].expand(b, h), pair[1].expand(b, h)))
    return found


def against_random_keys(weights: Tensor, visible: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """(score, control) of a set of keys, each (b, h): the mean weight on them over queries that see one, and the weight that
    as many random keys would get: the row's weight times their share of what it sees. The first key is left out of both.

    keys (b, s) boolean.
    """
    weights, visible, keys = weights[..., 1:], visible[..., 1:], keys[:, None, None, 1:]
    inside = visible & keys
    share = inside.sum(-1) / visible.sum(-1).clamp(min=1)
    sees = inside.any(-1)
    queries = sees.sum(-1)
    score = (weights * inside).sum((-1, -2))
    control = ((weights * visible).sum(-1) * share * sees).sum(-1)
    return _mean(score, queries), _mean(control, queries)


def _mean(total: Tensor, count: Tensor) -> Tensor:
    return torch.where(count > 0, total / count.clamp(min=1), torch.nan)


def measure_text(look: Look, *, words: Vocabulary, rows: slice) -> Tensor:
    """(b, h, measures, 2): score and control of each of TEXT_MEASURES; `rows`: the queries that hold text, not marks."""
    rows = slice(0, look.weights.shape[2]) if look.stage in ("decoder", "cross") else rows
    weights, visible = look.weights[:, :, rows], look.visible[:, :, rows]
    b, h, _, s = weights.shape
    queries = look.query_ids[:, rows]
    peaks = torch.zeros_like(weights).scatter_(-1, weights.argmax(-1, keepdim=True), 1.0)
    query_at = torch.arange(rows.start, rows.stop, device=weights.device)[:, None]
    key_at = torch.arange(s, device=weights.device)
    found = []
    for each in (weights, peaks):
        found += against_others_at(each, visible, [offset + rows.start for offset in OFFSETS])
    found.append(_first(weights, query_at))
    for chosen in (words.delimiters, words.rare):
        found.append(against_random_keys(weights, visible, _isin(look.key_ids, chosen)))
    same = queries[:, None, :, None] == look.key_ids[:, None, None, :]
    if look.stage != "cross":
        same = same & (key_at != query_at)
    found.append(against_others(weights, visible, same))
    return torch.stack([torch.stack([part.expand(b, h) for part in pair], -1) for pair in found], 2)


def _first(weights: Tensor, query_at: Tensor) -> tuple[Tensor, Tensor]:
    """The mean weight on the first key and on the second, over queries that stand behind both."""
    behind = query_at[:, 0] >= 2
    if not bool(behind.any()) or weights.shape[-1] < 2:
        nothing = weights.new_full(weights.shape[:2], torch.nan)
        return nothing, nothing
    rows = weights[:, :, behind]
    return rows[..., 0].mean(-1), rows[..., 1].mean(-1)


def _isin(ids: Tensor, chosen: frozenset[int]) -> Tensor:
    wanted = torch.tensor(sorted(chosen) or [-1], device=ids.device, dtype=ids.dtype)
    return torch.isin(ids, wanted)
