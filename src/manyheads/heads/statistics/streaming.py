"""One call of attention, walked over in tiles: what each head's rows of probabilities come to, summed over queries.

    p_ij = exp(l_ij - lse_i),  lse_i = top + ln(sum of e, and of the sink)

Memory is that of a tile and of one row of fields a query of the tile, whatever the length of the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from manyheads.models.door.call import Call
from manyheads.ops import score_rows as fields
from manyheads.ops.deferred import materialized
from manyheads.ops.layout import ranked
from manyheads.ops.precision import wide
from manyheads.ops.predicates import Causal, Visible, Window, grid
from manyheads.ops.score_rows import Bounds, Rows, SequenceView, init_rows, mask_logits, scan

__all__ = ["Scan", "Sums", "stream"]

_TILE_KEYS = 2048
_TILE_ELEMENTS = 2**20  # of all heads together: 4 MiB in float32

# Takes a tile of logits into rows: `rows.scan` or its compiled twin.
Scan = Callable[[Rows, Tensor, slice, SequenceView, Bounds | None], None]


@dataclass(eq=False)
class Sums:
    """Sums over queries for each head of one attention module, in float64; `masses` are their names.

    mass, seen (masses, h)   of the probabilities, and the queries where there was any
    offsets, tops (h, 2·max_offset + 1)   of the probabilities by distance, and of the queries by that of their strongest key
    entropy, distance, attended, logit_std, norm (h,)   and `queries` (h,), which all are sums over
    """

    heads: int
    max_offset: int
    masses: tuple[str, ...]
    totals: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        h, many = self.heads, len(self.masses)
        shapes: dict[str, tuple[int, ...]] = {
            "mass": (many, h),
            "seen": (many, h),
            "offsets": (h, 2 * self.max_offset + 1),
            "tops": (h, 2 * self.max_offset + 1),
        }
        shapes |= dict.fromkeys(("entropy", "distance", "attended", "logit_std", "norm", "queries"), (h,))
        self.totals = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}

    def add(self, name: str, part: Tensor) -> None:
        """Adds to one of the sums."""
        self.totals[name] += part.detach().to("cpu", torch.float64)

    def add_all(self, other: Sums) -> None:
        """Adds what `other` summed, of as many heads or of one for all."""
        for name, part in other.totals.items():
            self.totals[name] += part


def stream(call: Call, views: list[SequenceView], sums: Sums, *, scan_tile: Scan = scan, uniform: bool = False) -> None:
    """Adds every query of `call` to `sums`; `views` one a sequence.

    uniform: of a head that gives the same probability to every key it may see, which is what chance is.
    """
    b, heads, t, _ = call.q.shape
    h, s = sums.heads if uniform else heads, call.k.shape[2]
    dtype = wide(call.q.dtype)
    for sequence in range(b):
        view = views[sequence]
        logits_of = _level(call, h, dtype) if uniform else _products(call, sequence, dtype)
        for rows in _row_tiles(t, h, min(s, _TILE_KEYS)):
            state = init_rows(h, rows, view, max_offset=sums.max_offset, like=call.q, dtype=dtype)
            at = torch.arange(rows.start, rows.stop, device=call.q.device) + view.offset
            bounds = _bounds(call.mask, at, s)
            for columns in _column_tiles(call.mask, at, bounds, s):
                logits = logits_of(rows, columns)
                if bounds is None:
                    pairs = grid(batch=b, heads=heads, rows=rows, columns=columns, offset=view.offset, device=at.device)
                    logits = mask_logits(logits, call.mask, pairs, sequence)
                scan_tile(state, logits, columns, view, bounds)
            _accumulate(state, view, sums, call.sinks, uniform=uniform)


def _products(call: Call, sequence: int, dtype: torch.dtype) -> Callable[[slice, slice], Tensor]:
    """The logits of a tile of one sequence, before anything is hidden."""
    k = materialized(call.k)[sequence].to(dtype)
    # Whole vectors of keys, so that no tile has to be copied for the compiled scan.
    k = torch.nn.functional.pad(k, (0, 0, 0, -k.shape[1] % 16))
    q, kv_heads = call.q[sequence], k.shape[0]
    bias = ranked(call.bias) if isinstance(call.bias, Tensor) else None

    def tile(rows: slice, columns: slice) -> Tensor:
        part = q[:, rows].to(dtype) * call.scale
        h, r, d = part.shape
        whole = k[:, columns.start : columns.stop + -columns.stop % 16]
        logits = (part.reshape(kv_heads, h // kv_heads * r, d) @ whole.mT).reshape(h, r, -1)
        logits = logits[..., : columns.stop - columns.start]
        if call.softcap is not None:
            logits = call.softcap * torch.tanh(logits / call.softcap)
        if bias is None:
            return logits
        own = bias[sequence if bias.shape[0] > 1 else 0]
        own = own[:, rows if own.shape[1] != 1 else slice(None), columns if own.shape[2] != 1 else slice(None)]
        return logits + own.to(dtype)

    return tile


def _level(call: Call, heads: int, dtype: torch.dtype) -> Callable[[slice, slice], Tensor]:
    """Logits of a head without preferences."""
    return lambda rows, columns: call.q.new_zeros(
        (heads, rows.stop - rows.start, columns.stop - columns.start), dtype=dtype
    )


def _row_tiles(queries: int, heads: int, keys: int) -> Iterator[slice]:
    size = max(8, min(128, _TILE_ELEMENTS // max(1, heads * keys)))
    return (slice(at, min(at + size, queries)) for at in range(0, queries, size))


def _bounds(visible: Visible | Tensor | None, queries: Tensor, keys: int) -> Bounds | None:
    """The keys that queries at these positions see, where each sees one stretch of them; None where one has to look."""
    if visible is None:
        return torch.zeros_like(queries), torch.full_like(queries, keys)
    if not isinstance(visible, (Causal, Window)):
        return None
    low = queries - visible.keys + 1 if isinstance(visible, Window) else torch.zeros_like(queries)
    return low.clamp(0, keys), (queries + 1).clamp(0, keys)


def _column_tiles(
    visible: Visible | Tensor | None, queries: Tensor, bounds: Bounds | None, keys: int
) -> Iterator[slice]:
    """The key tiles that some query may see."""
    first, last = (0, keys) if bounds is None else (int(bounds[0].min()) // 16 * 16, int(bounds[1].max()))
    for start in range(first, last, _TILE_KEYS):
        columns = slice(start, min(start + _TILE_KEYS, last))
        ends = int(queries[0]), int(queries[-1]), columns.start, columns.stop - 1
        if not isinstance(visible, Visible) or visible.block(*ends) is not False:
            yield columns


def _accumulate(rows: Rows, view: SequenceView, sums: Sums, sinks: Tensor | None, *, uniform: bool) -> None:
    """Rows whose keys have all passed, added to the sums."""
    state, max_offset = rows.state.double(), sums.max_offset
    counted = state[..., fields.COUNT] > 0
    if view.real is not None:
        counted = counted & view.real[rows.first : rows.first + state.shape[1]]
    total = state[..., fields.TOTAL]
    whole = total
    if sinks is not None and not uniform:
        whole = total + torch.exp(sinks.double()[:, None] - state[..., fields.TOP])
    whole = torch.where(counted, whole, 1.0)

    def summed(part: Tensor) -> Tensor:
        return torch.where(counted, part, 0.0).sum(1)

    share = total / whole
    sums.add("queries", counted.sum(1))
    sums.add("attended", summed(share))
    sums.add("entropy", summed(share * torch.log(whole) - state[..., fields.WEIGHTED] / whole))
    sums.add("distance", summed(state[..., fields.DISTANCE] / whole))
    seen = state[..., fields.COUNT].clamp_min(1)
    mean = state[..., fields.SUM] / seen
    sums.add("logit_std", summed((state[..., fields.SQUARES] / seen - mean * mean).clamp_min(0).sqrt()))
    # In the dtype of the rows: this is the one part that is as wide as the band.
    top = torch.where(counted, state[..., fields.TOP] + torch.log(whole), torch.inf).to(rows.band.dtype)
    near = torch.exp(rows.band - top[..., None])
    past = torch.where(counted, state[..., fields.PAST] / whole, 0.0)
    _add_offsets(near, past, torch.where(counted, share, 0.0), sums)
    _add_masses(near, torch.where(counted[..., None], state[..., fields.KEY_SETS :] / whole[..., None], 0.0), sums)
    i = torch.arange(rows.first, rows.first + state.shape[1], device=state.device) + view.offset
    at = (i - state[..., fields.BEST]).clamp(-max_offset, max_offset).long() + max_offset
    tops = state.new_zeros((state.shape[0], 2 * max_offset + 1)).scatter_add_(1, at, counted.double())
    sums.add("tops", tops)


def _add_offsets(near: Tensor, past: Tensor, share: Tensor, sums: Sums) -> None:
    """The band, and what is farther on either side of it: the mass of that side without the band's."""
    max_offset = sums.max_offset
    inside = near.sum(1, dtype=torch.float64)
    behind = (past.sum(1) - inside[:, max_offset - 1 :].sum(-1)).clamp_min(0)
    ahead = ((share - past).sum(1) - inside[:, : max_offset - 1].sum(-1)).clamp_min(0)
    sums.add("offsets", torch.cat((ahead[:, None], inside, behind[:, None]), 1))


def _add_masses(near: Tensor, marked: Tensor, sums: Sums) -> None:
    centre = sums.max_offset - 1
    ours = torch.stack((near[..., centre], near[..., centre + 1], near[..., centre - 1]), -1).double()
    mass = torch.cat((ours, marked), -1)
    sums.add("mass", mass.sum(1).T)
    sums.add("seen", (mass > 0).sum(1).T)
