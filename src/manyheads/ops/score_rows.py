"""What is kept of a query's row of scores while its keys pass by in tiles, and the plain scan that fills it.

    e_j = exp(l_j - top);  top grows, and what was summed is multiplied by exp(old - new), as in online softmax

No row is ever held whole. The compiled scan (kernels.score_rows) keeps the same fields; this one is its twin.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.ops.predicates import Grid, Visible

__all__ = [
    "BEST",
    "COUNT",
    "DISTANCE",
    "KEY_SETS",
    "LANES",
    "PAST",
    "REFERENCE",
    "SQUARES",
    "SUM",
    "TOP",
    "TOTAL",
    "WEIGHTED",
    "Bounds",
    "Rows",
    "SequenceView",
    "init_rows",
    "lane_padded",
    "mask_logits",
    "scan",
]  # fmt: skip

LANES = 16  # floats that the compiled scan reads at a time

# For each query of a tile, the first key that it sees and the one after the last: integers (r,).
Bounds = tuple[Tensor, Tensor]

# Fields of a row, all over the keys that it sees: the largest logit; sum of e; sum of e·(l - top); sum of e·|i - j|; sum of
# e over keys up to the query; a logit near all others, sums of l and l² about it, their number; the key with the largest
# logit (the first of equals). From KEY_SETS on: sums of e over duplicates of the query's token, over induction targets, and
# times each row of `SequenceView.key_sets`.
TOP, TOTAL, WEIGHTED, DISTANCE, PAST, REFERENCE, SUM, SQUARES, COUNT, BEST, KEY_SETS = range(11)


@dataclass(frozen=True, eq=False)
class SequenceView:
    """One sequence as the rows see it.

    real      (t,) queries that are counted, None for all
    ids       (t,) int32 token of each query, and `keys` (s,) of each key, -2 where there is none; None where unknown
    before    (s,) the token before each key, -1 where there is none
    key_sets  (f, s) membership of each key, 1 or 0: in the first token, in the sets that were asked for
    offset    position of the first query among the keys
    """

    real: Tensor | None
    ids: Tensor | None
    keys: Tensor | None
    before: Tensor | None
    key_sets: Tensor
    offset: int


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of queries `first`..: state (h, r, fields), and the logits near the diagonal, band (h, r, 2·max_offset - 1).

    band[..., max_offset - 1 + d] is the logit of the key d before the query; -inf where it is not seen.
    """

    first: int
    state: Tensor
    band: Tensor

    @property
    def max_offset(self) -> int:
        """Distances 0 to max_offset - 1 are in the band."""
        return (self.band.shape[2] + 1) // 2


def lane_padded(x: Tensor) -> Tensor:
    """`x` with room behind its last axis for a vector of the compiled scan to be read; itself where it has that already."""
    last = x.storage_offset() + sum((n - 1) * step for n, step in zip(x.shape, x.stride(), strict=True)) + 1
    held = x.untyped_storage().nbytes() // x.element_size()
    if x.stride(-1) == 1 and held - last >= LANES - 1:
        return x
    room = x.new_zeros((*x.shape[:-1], x.shape[-1] + LANES))
    room[..., : x.shape[-1]] = x
    return room[..., : x.shape[-1]]


def init_rows(
    heads: int, rows: slice, view: SequenceView, *, max_offset: int, like: Tensor, dtype: torch.dtype
) -> Rows:
    """Rows that have seen nothing yet."""
    count = rows.stop - rows.start
    state = like.new_zeros((heads, count, KEY_SETS + 2 + view.key_sets.shape[0]), dtype=dtype)
    state[..., TOP] = -torch.inf
    band = like.new_full((heads, count, 2 * max_offset - 1), -torch.inf, dtype=dtype)
    return Rows(rows.start, state, band)


def scan(rows: Rows, logits: Tensor, columns: slice, view: SequenceView, bounds: Bounds | None) -> None:
    """Takes a tile of logits (h, r, c) into `rows`; a key is not seen where they are -inf, nor outside `bounds`."""
    i = torch.arange(rows.first, rows.first + logits.shape[1], device=logits.device)[:, None] + view.offset
    j = torch.arange(columns.start, columns.stop, device=logits.device)[None]
    if bounds is not None:
        logits = torch.where((j >= bounds[0][:, None]) & (j < bounds[1][:, None]), logits, -torch.inf)
    state, seen = rows.state, logits > -torch.inf
    largest, place = logits.max(-1)
    old, total = state[..., TOP].clone(), state[..., TOTAL].clone()
    new = torch.maximum(old, largest)
    safe = torch.where(new == -torch.inf, 0.0, new)
    shift = torch.where(old == -torch.inf, 0.0, old - safe)
    factor = torch.where(old == -torch.inf, 0.0, torch.exp(shift))
    state[..., BEST] = torch.where(largest > old, (place + columns.start).to(state.dtype), state[..., BEST])
    x = torch.where(seen, logits - safe[..., None], 0.0)
    e = torch.where(seen, torch.exp(x), 0.0)
    state[..., WEIGHTED] = (state[..., WEIGHTED] + total * shift) * factor + (e * x).sum(-1)
    parts = [e, e * (i - j).abs(), e * (j <= i)]
    for field, part in zip((TOTAL, DISTANCE, PAST), parts, strict=True):
        state[..., field] = state[..., field] * factor + part.sum(-1)
    state[..., KEY_SETS:] = state[..., KEY_SETS:] * factor[..., None] + _key_set_sums(e, i, j, rows, columns, view)
    state[..., TOP] = new
    begun = state[..., COUNT] > 0
    state[..., REFERENCE] = torch.where(begun, state[..., REFERENCE], safe)
    about = torch.where(seen, logits - state[..., REFERENCE, None], 0.0)
    state[..., SUM] += about.sum(-1)
    state[..., SQUARES] += (about * about).sum(-1)
    state[..., COUNT] += seen.sum(-1)
    _keep_band(rows, logits, i, columns)


def _key_set_sums(e: Tensor, i: Tensor, j: Tensor, rows: Rows, columns: slice, view: SequenceView) -> Tensor:
    """(h, r, 2 + f): sums of e over duplicates, induction targets, and times each row of key sets."""
    linear = e @ view.key_sets[:, columns].to(e.dtype).mT
    if view.ids is None or view.keys is None or view.before is None:
        nothing = linear.new_zeros((*linear.shape[:2], 2))
        return torch.cat((nothing, linear), -1)
    own = view.ids[rows.first : rows.first + e.shape[1], None]
    same = (view.keys[None, columns] == own) & (i != j)
    after = (view.before[None, columns] == own) & (j <= i)
    return torch.cat(((e * same).sum(-1)[..., None], (e * after).sum(-1)[..., None], linear), -1)


def _keep_band(rows: Rows, logits: Tensor, i: Tensor, columns: slice) -> None:
    distance = torch.arange(1 - rows.max_offset, rows.max_offset, device=logits.device)[None]
    column = i - distance - columns.start
    inside = (column >= 0) & (column < logits.shape[2])
    if inside.any():
        found = logits.gather(2, column.clamp(0, logits.shape[2] - 1).expand(logits.shape[0], -1, -1))
        rows.band.copy_(torch.where(inside, found, rows.band))


def mask_logits(logits: Tensor, visible: Visible | Tensor | None, at: Grid, sequence: int) -> Tensor:
    """A tile of logits (h, r, c) of one sequence with -inf where `visible` says no."""
    if visible is None:
        return logits
    if isinstance(visible, Tensor):
        mask = visible[(None,) * (4 - visible.dim())]
        seen = mask[
            :, :, at.rows if mask.shape[2] != 1 else slice(None), at.columns if mask.shape[3] != 1 else slice(None)
        ]
    else:
        seen = visible.tile(at)
    return torch.where(seen[sequence if seen.shape[0] > 1 else 0], logits, -torch.inf)
