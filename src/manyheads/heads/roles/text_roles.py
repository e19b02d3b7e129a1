"""The roles that ordinary text shows, in windows of it that do not overlap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from manyheads.heads.address import Head
from manyheads.heads.alignment import Frame
from manyheads.heads.attention_weights import AttentionWeights, measure_heads
from manyheads.heads.batches import Batch
from manyheads.heads.left_out import LeftOut, present
from manyheads.heads.roles.evidence import SINK, Evidence, beside, from_units
from manyheads.heads.roles.text_scores import (
    CONTROLS,
    FARTHEST,
    OFFSETS,
    TEXT_MEASURES,
    WIDTHS,
    TokenFigures,
    TokenKinds,
    measure_text,
    token_kinds,
    tokens_apart,
)
from manyheads.heads.roles.token_types import LEAST_TYPES, above_p, delimiter_p, first_p, rare_p
from manyheads.heads.significance import unit_mean

__all__ = ["POSITIONAL_SHARE", "WITHOUT", "cut", "text_roles", "unread"]

POSITIONAL_SHARE = 0.9
"""Voita et al. call a head positional where one offset has the largest weight in this share of cases (facts.md A47)."""
LOCAL_SHARE = 0.5
"""A head looks near by where it gives this much to the tokens of a local window: most heads give more to near tokens than to far
ones."""
WINDOW_TOKENS = 128
MOST_WINDOWS = 24
LEAST_WINDOWS = 8
_SHORTEST_WINDOW = 16
_AT_ONCE = 4

_TYPES = f"fewer than {LEAST_TYPES} other tokens come twice"
WITHOUT = {
    "next token": "no head of this model sees the token after: its attention is causal",
    "delimiter": f"no token of the text is a delimiter, or {_TYPES}",
    "rare token": f"every token of the text comes more than once, or {_TYPES}",
    "duplicate token": "no two tokens of a window come twice",
}
"""Why a role could not be tested in any head."""

_OTHERS = "what other queries give these keys, or an even spread"
_NEIGHBOURS = f"{_OTHERS}; the distances one less and one more"


def cut(ids: Sequence[int], longest: int, around: Frame) -> tuple[list[list[int]], int]:
    """Windows of the text that do not overlap, spread over all of it, and their width; shorter ones where there is little text."""
    room = longest - len(around.before) - len(around.after)
    width = max(2, min(WINDOW_TOKENS, room, max(_SHORTEST_WINDOW, len(ids) // (2 * LEAST_WINDOWS)), len(ids)))
    count = len(ids) // width
    if count > MOST_WINDOWS:
        starts = [number * (len(ids) - width) // (MOST_WINDOWS - 1) for number in range(MOST_WINDOWS)]
    else:
        starts = [number * width for number in range(count)]
    return [list(ids[start : start + width]) for start in starts], width


def unread(ids: Sequence[int], windows: Sequence[Sequence[int]], width: int) -> tuple[LeftOut, ...]:
    """The tokens that are in no window."""
    why = f"roles of ordinary text are told from at most {MOST_WINDOWS} windows of {width} tokens, spread over it"
    return present(LeftOut("tokens", len(ids) - len(windows) * width, len(ids), why))


def text_roles(
    model: Any, tokenizer: Any, *, ids: Sequence[int], windows: Sequence[Sequence[int]], around: Frame, seed: int
) -> tuple[list[Evidence], list[tuple[str, str]]]:
    """The evidence, and (role, why) for what could not be tested."""
    if len(windows) < LEAST_WINDOWS:
        why = (
            f"the text gives {len(windows)} windows of {len(windows[0])} tokens; expected at least {LEAST_WINDOWS} of "
            f"{_SHORTEST_WINDOW}, half of them to choose on and half to score"
        )
        return [], [(name, why) for name in ("previous token", "next token", "itself", "fixed offset", "positional",
                                             "local window", SINK, "delimiter", "rare token", "duplicate token")]  # fmt: skip
    words = token_kinds(tokenizer, ids, marks=around.after)
    batches = _batches(model, windows, around)
    content = slice(len(around.before), len(around.before) + len(windows[0]))

    def measure(attention: AttentionWeights, _: int) -> torch.Tensor:
        figures = measure_text(attention, words=words, rows=content)
        return torch.cat((figures.flatten(2), tokens_apart(attention, rows=content).packed()), -1)

    heads, found = measure_heads(model, batches, measure)
    first = len(TEXT_MEASURES) * (1 + CONTROLS)
    scores = found[..., :first].reshape(*found.shape[:2], len(TEXT_MEASURES), 1 + CONTROLS)
    by_type = _by_type(heads, found[1::2, :, first:], batches, np.array(windows)[1::2], words)
    made = [*_position_roles(heads, scores, seed=seed), *_token_roles(heads, scores, seed=seed)]
    return [replace(one, p_value=np.maximum(one.p_value, by_type.get(one.name, one.p_value))) for one in made], []


def _batches(model: Any, windows: Sequence[Sequence[int]], around: Frame) -> list[Batch]:
    start = getattr(getattr(model, "config", None), "decoder_start_token_id", None)
    batches = []
    for at in range(0, len(windows), _AT_ONCE):
        part = windows[at : at + _AT_ONCE]
        batch = {"input_ids": torch.tensor([[*around.before, *window, *around.after] for window in part])}
        if isinstance(start, int):
            batch["decoder_input_ids"] = torch.tensor([[start, *window] for window in part])
        batches.append(batch)
    return batches


def _by_type(
    heads: tuple[Head, ...], single: np.ndarray, batches: Sequence[Batch], ids: np.ndarray, words: TokenKinds
) -> Mapping[str, np.ndarray]:
    """The p-values of `heads.roles.token_types`, of the windows that are scored; `single` (windows, heads, ...) and `ids` are of these."""
    figures = TokenFigures.unpacked(single)
    starts = {
        stack: [row for batch in batches if name in batch for row in batch[name][:, 0].tolist()][1::2]
        for stack, name in (("", "input_ids"), ("decoder", "decoder_input_ids"))
    }
    first = np.full(len(heads), np.nan)
    for stack in {head.stack for head in heads}:
        own = np.array([head.stack == stack for head in heads])
        first[own] = first_p(figures.first[:, own], figures.lift[:, own], starts.get(stack) or starts[""])
    return {
        SINK: first, "delimiter": delimiter_p(figures, ids, words), "rare token": rare_p(figures, ids, words),
        "duplicate token": above_p(figures.alike, ids), "itself": above_p(figures.itself, ids),
    }  # fmt: skip


def _token_roles(heads: tuple[Head, ...], scores: np.ndarray, *, seed: int) -> list[Evidence]:
    """Roles of what stands there."""
    told = {
        SINK: ("attention to the first token", "the second token; the spread between places"),
        "delimiter": (
            "attention to punctuation, line ends and separators",
            "as many random keys; the other tokens that come often",
        ),
        "rare token": (
            "attention to tokens that come once in the text",
            "as many random keys; the words that come more than once",
        ),
        "duplicate token": ("attention to other places of the same token", f"{_OTHERS}; the spread between tokens"),
    }
    return [
        from_units(name, heads, scores[:, :, TEXT_MEASURES.index(name)], seed=seed, what=what, control=control)
        for name, (what, control) in told.items()
    ]


def _position_roles(heads: tuple[Head, ...], scores: np.ndarray, *, seed: int) -> list[Evidence]:
    """Roles of position, from `scores` (windows, heads, measures, 1 + controls); what is chosen is on the even windows."""
    made = [
        from_units(name, heads, scores[:, :, TEXT_MEASURES.index(f"mass {offset:+d}")], seed=seed, control=control,
                   what=f"attention to {what}")
        for name, offset, what, control in (
            ("previous token", -1, "the token before", _NEIGHBOURS), ("next token", 1, "the token after", _NEIGHBOURS),
            ("itself", 0, "the query's own token", f"{_NEIGHBOURS}; the spread between tokens"),
        )
    ]  # fmt: skip
    far = [offset for offset in OFFSETS if abs(offset) >= 2]
    values, best = _best(scores, [f"mass {offset:+d}" for offset in far])
    made.append(from_units("fixed offset", heads, values, seed=seed, detail=[beside(far[at]) for at in best],
                           control=_NEIGHBOURS, what=f"attention to the token at one distance, 2 to {FARTHEST} away"))  # fmt: skip
    near = [offset for offset in OFFSETS if offset]
    values, best = _best(scores, [f"peak {offset:+d}" for offset in near])
    made.append(from_units(
        "positional", heads, values, seed=seed, detail=[beside(near[at]) for at in best],
        control="how often these keys have the largest weight of other queries; the distances one less and one more",
        what=f"queries whose largest weight is at one distance; at least {POSITIONAL_SHARE:.0%} (Voita et al. 2019)",
        least_score=POSITIONAL_SHARE,
    ))  # fmt: skip
    values, width = _narrowest(scores)
    made.append(from_units(
        "local window", heads, values, seed=seed, detail=[f"at most {each} away" for each in width],
        control=f"{_OTHERS}; the one distance in it that gets most",
        what=f"attention to the tokens at most so far away, itself too; at least {LOCAL_SHARE:.0%}", least_score=LOCAL_SHARE,
    ))  # fmt: skip
    return made


def _narrowest(scores: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Of each head the narrowest local window with enough of its attention on the even windows, or the widest: its values
    (windows, heads, 1 + controls), and its width."""
    of_each = scores[:, :, [TEXT_MEASURES.index(f"window {width}") for width in WIDTHS]]
    enough = unit_mean(of_each[0::2])[..., 0] >= LOCAL_SHARE
    which = np.where(enough.any(1), enough.argmax(1), len(WIDTHS) - 1)
    return of_each[:, np.arange(of_each.shape[1]), which], [WIDTHS[at] for at in which]


def _best(scores: np.ndarray, measures: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Of each head the measure that is furthest above its largest control on the even windows: its values (windows, heads,
    1 + controls), and which one it is (heads,)."""
    of_each = scores[:, :, [TEXT_MEASURES.index(name) for name in measures]]
    means = unit_mean(of_each[0::2])
    ahead = means[..., 0] - np.where(np.isnan(means[..., 1:]), -np.inf, means[..., 1:]).max(-1)
    best = np.where(np.isfinite(ahead), ahead, -np.inf).argmax(1)
    return of_each[:, np.arange(of_each.shape[1]), best], best
