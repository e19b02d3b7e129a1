"""What a head does with ordinary text: one score for each role and window, and beside it what the same window gives a head
that does not have the role.

Shuffling the text would be no control here: positions, delimiters, duplicates stay in place, and so do such heads. The
controls are

    other queries     what the same keys get from the other queries that see them, which have not this relation to them: a
                      key that everybody looks at (a sink) proves nothing about the pair; or what an even spread would
                      give them, if that is more, as for queries that see few keys
    the neighbours    of a distance: the distances one less and one more, to the same queries; a head that looks at whatever is
                      near has mass at each near distance and means none of them
    one distance      of a local window: the distance in it that gets most
    random keys       as many keys drawn at random among those that the query sees, the first one apart: their expected
                      share, exactly, without drawing
    second token      the key beside the first one

A head that spreads its weight evenly equals all of them and so plays no role, however large the set of keys. A head with random
preferences is told from one with a role by `heads.roles.token_types`, for which `measure_text` keeps what each single token gets.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.heads.attention_weights import AttentionWeights

__all__ = [
    "CONTROLS",
    "FARTHEST",
    "OFFSETS",
    "TEXT_MEASURES",
    "WIDTHS",
    "TokenFigures",
    "TokenKinds",
    "against_others",
    "against_random_keys",
    "at_distances",
    "local_window",
    "measure_text",
    "token_kinds",
    "tokens_apart",
]

FARTHEST = 8
"""Fixed offsets are looked for up to this many tokens away."""
WIDTHS = (2, 4, 8)
"""A local window is looked for this many tokens to either side."""

OFFSETS = tuple(range(-FARTHEST, FARTHEST + 1))
TEXT_MEASURES = (
    *(f"mass {offset:+d}" for offset in OFFSETS), *(f"peak {offset:+d}" for offset in OFFSETS),
    *(f"window {width}" for width in WIDTHS), "first token", "delimiter", "rare token", "duplicate token",
)  # fmt: skip
CONTROLS = 3
"""Values that a measure may be held against; NaN for those that it has not."""
_LEAST_LIFT = 0.01
"""A key that gets a hundredth of the others' mean gets nothing: what is below differs by the logarithm of next to nothing."""
_LEAST_VIEWERS = 8
_AS_STRONG = 0.99
"""Keys that get nearly as much as the strongest are the strongest together: of equal ones the first is nothing special."""
_NEXT_TO_NOTHING = 1e-6


@dataclass(frozen=True)
class TokenKinds:
    """Token ids of the texts that are read: `delimiters` (punctuation, line ends, the model's own marks between texts) and
    `rare`: those that come once in all the texts together."""

    delimiters: frozenset[int]
    rare: frozenset[int]


def token_kinds(tokenizer: Any, ids: Sequence[int], *, marks: Iterable[int] = ()) -> TokenKinds:
    """Which of `ids` are delimiters and which are rare; `marks`: separators that the model puts around texts."""
    counts = Counter(ids)
    written = {token: str(tokenizer.decode([token])) for token in counts}
    delimiters = {token for token, text in written.items() if _is_delimiter(text)}
    return TokenKinds(
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
    return _means(*_row_by_row(weights, visible, pattern))


def _means(given: Tensor, usual: Tensor, even: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over the queries that say something, and that of the control which is larger."""
    queries = (~given.isnan()).sum(-1)
    control = torch.maximum(usual.nansum(-1), even.nansum(-1))
    return _mean(given.nansum(-1), queries), _mean(control, queries)


def _row_by_row(
    weights: Tensor, visible: Tensor, pattern: Tensor, *, whole: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Of each query, (b, h, t): what it gives to the keys of a pattern, what other queries give to them, and what an even spread
    would; NaN without such a key that others see too, and with `whole` where that is not so of all its keys in the pattern."""
    inside, outside = visible & pattern, visible & ~pattern
    viewers = outside.sum(-2, keepdim=True)
    usual = (weights * outside).sum(-2, keepdim=True) / viewers.clamp(min=1)
    inside = inside & (viewers > 0)
    even = inside.sum(-1) / visible.sum(-1).clamp(min=1) * weights.sum(-1)
    none = (pattern & visible & (viewers == 0)).any(-1) if whole else torch.zeros_like(inside[..., 0])
    none = none | ~inside.any(-1)
    given, others = (weights * inside).sum(-1), (usual * inside).sum(-1)
    return tuple(each.masked_fill(none, torch.nan) for each in (given, others, even))  # type: ignore[return-value]


def at_distances(weights: Tensor, visible: Tensor, diagonals: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """For each d of `diagonals`, (score, control, below, above), each (b, h): the mean weight on the key at column - row == d;
    `against_others`' control of that pattern; and the mean weights at d - 1 and d + 1. All four are means over the same queries,
    those that see the key and its two neighbours; a neighbour that no query sees is none (NaN), and none is asked for.
    """
    b, h, t, s = weights.shape
    span = range(min(diagonals) - 1, max(diagonals) + 2)
    at = torch.arange(t, device=weights.device)[:, None] + torch.tensor(list(span), device=weights.device)
    inside, at = (at >= 0) & (at < s), at.clamp(0, s - 1)
    seen = visible.expand(b, visible.shape[1], t, s).gather(-1, at.expand(b, visible.shape[1], -1, -1)) & inside
    weight = weights.gather(-1, at.expand(b, h, -1, -1)) * seen
    total, viewers = weights.sum(-2), visible.sum(-2).expand(b, -1, s)
    even = weights.sum(-1) / visible.sum(-1).clamp(min=1)
    ever = seen.flatten(0, 2).any(0).tolist()
    found = []
    for d in diagonals:
        i = d - span.start
        near = [n for n in (i - 1, i + 1) if ever[n]]
        others = viewers.gather(-1, at[:, i].expand(b, viewers.shape[1], -1)) - seen[..., i].long()
        there = seen[..., [i, *near]].all(-1) & (others > 0)
        usual = (total.gather(-1, at[:, i].expand(b, h, -1)) - weight[..., i]) / others.clamp(min=1)
        control = torch.maximum((usual * there).sum(-1), (even * there).sum(-1))
        beside = [
            (weight[..., n] * there).sum(-1) if ever[n] else weight.new_full((b, h), torch.nan) for n in (i - 1, i + 1)
        ]
        queries = there.sum(-1)
        found.append(tuple(_mean(each, queries) for each in ((weight[..., i] * there).sum(-1), control, *beside)))
    return found


def local_window(
    weights: Tensor, visible: Tensor, apart: Tensor, width: int, single: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(score, control, control), each (b, h), of the keys at most `width` away: their share and what other queries give them or
    an even spread would, and the share of that distance among them which gets most; over the queries all of whose near keys
    others see too. `apart` (t, s): how far they are;
    `single` (b, h, 2 FARTHEST + 1): the mean weight at each of OFFSETS.
    """
    score, control = _means(*_row_by_row(weights, visible, apart.abs() <= width, whole=True))
    near = single[..., FARTHEST - width : FARTHEST + width + 1]
    return score, control, near.nan_to_num(nan=0.0).amax(-1)


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


def measure_text(attention: AttentionWeights, *, words: TokenKinds, rows: slice) -> Tensor:
    """(b, h, measures, 1 + CONTROLS): score and controls of each of TEXT_MEASURES; `rows`: the queries that hold text, not marks."""
    weights, visible, query_at, key_at = _asked(attention, rows)
    b, h = weights.shape[:2]
    strongest = (weights >= _AS_STRONG * weights.amax(-1, keepdim=True)) & visible
    peaks = strongest / strongest.sum(-1, keepdim=True).clamp(min=1)
    diagonals = [offset + int(query_at[0]) for offset in OFFSETS]
    masses = at_distances(weights, visible, diagonals)
    found: list[tuple[Tensor, ...]] = [*masses, *at_distances(peaks, visible, diagonals)]
    single = torch.stack([mass[0].expand(b, h) for mass in masses], -1)
    found += [local_window(weights, visible, key_at - query_at, width, single) for width in WIDTHS]
    found.append(_first(weights, query_at))
    for chosen in (words.delimiters, words.rare):
        found.append(against_random_keys(weights, visible, _isin(attention.key_ids, chosen)))
    found.append(against_others(weights, visible, _alike(attention, query_at, key_at)))
    nothing = weights.new_full((b, h), torch.nan)
    return torch.stack(
        [torch.stack([*(part.expand(b, h) for part in each), *[nothing] * (1 + CONTROLS - len(each))], -1) for each in found], 2
    )  # fmt: skip


def _asked(attention: AttentionWeights, rows: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The weights and what is visible of the rows that are asked, and the places of these and of the keys, (t, 1) and (s)."""
    rows = slice(0, attention.weights.shape[2]) if attention.stack in ("decoder", "cross") else rows
    weights, visible = attention.weights[:, :, rows], attention.visible[:, :, rows]
    query_at = torch.arange(rows.start, rows.stop, device=weights.device)[:, None]
    return weights, visible, query_at, torch.arange(weights.shape[-1], device=weights.device)


def _alike(attention: AttentionWeights, query_at: Tensor, key_at: Tensor) -> Tensor:
    """(b, 1, t, s): keys of the query's own token, the query itself apart."""
    same = attention.query_ids[:, query_at[:, 0], None] == attention.key_ids[:, None]
    return (same if attention.stack == "cross" else same & (key_at != query_at))[:, None]


@dataclass(frozen=True)
class TokenFigures:
    """What single tokens do in one call, each (b, h, ...) and in the order of the window's tokens; NaN where nothing can be said.

    first   (b, h)      the logarithm of what the first key gets of the queries that see it, over the mean of all other keys
    lift    (b, h, t)   that of each token of the window as a key
    alike   (b, h, t, 2)   as a query: what it gives to other places of its token, less what other queries give these keys; less
                        what an even spread would
    itself  (b, h, t, 2)   the same of what it gives to its own place
    """

    first: Tensor
    lift: Tensor
    alike: Tensor
    itself: Tensor

    def packed(self) -> Tensor:
        """(b, h, 1 + 5 t): all of it in one tensor."""
        return torch.cat((self.first[..., None], self.lift, self.alike.flatten(2), self.itself.flatten(2)), -1)

    @classmethod
    def unpacked(cls, whole: Any) -> TokenFigures:
        """The same again, of a tensor or array with any axes in front."""
        count = (whole.shape[-1] - 1) // 5
        pairs = whole[..., 1 + count :].reshape(*whole.shape[:-1], 2, count, 2)
        return cls(whole[..., 0], whole[..., 1 : 1 + count], pairs[..., 0, :, :], pairs[..., 1, :, :])


def tokens_apart(attention: AttentionWeights, *, rows: slice) -> TokenFigures:
    """`TokenFigures` of the text's own tokens; `rows`: where they stand among the queries of a model of one stack, or its encoder."""
    weights, visible, query_at, key_at = _asked(attention, rows)
    count = rows.stop - rows.start
    viewers = visible.sum(-2)
    even = (visible / visible.sum(-1, keepdim=True).clamp(min=1)).sum(-2)
    lift = weights.sum(-2) / even.clamp(min=1e-30)
    lift = lift.masked_fill(viewers < viewers.amax(-1, keepdim=True).clamp(max=_LEAST_VIEWERS), torch.nan)
    level = lift[..., 1:].nanmean(-1, keepdim=True).clamp(min=_NEXT_TO_NOTHING)
    lift = (lift / level).clamp(min=_LEAST_LIFT).log()
    first = lift[..., 0].clone()
    lift[..., 0] = torch.nan
    # A decoder reads a start token and the text one place later.
    keys = 1 if attention.stack == "decoder" else rows.start
    queries = 1 if attention.stack in ("decoder", "cross") else 0
    above = []
    for pattern in (_alike(attention, query_at, key_at), key_at == query_at):
        given, usual, spread = _row_by_row(weights, visible, pattern)
        above.append(torch.stack((given - usual, given - spread), -1)[:, :, queries : queries + count])
    return TokenFigures(first, lift[..., keys : keys + count], *above)


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
