"""What every cache can do, and what a layer reads from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.quoting import shown
from manyheads.spec import AttentionSpec, Cross, Heads, Latent, State, to_text
from manyheads.spec.masks import Band, Bidirectional

__all__ = ["FAR", "Cache", "Kept", "described", "part_shapes", "refuse_two_sided"]

FAR = 2**62  # the position of a slot that holds nothing: after every query, so no causal mask shows it


@dataclass(frozen=True, eq=False)
class Kept:
    """Keys and values as attention reads them, and which token each column is.

    keys, values  (b, k, s, q) and (b, k, s, v); in latent attention the latent (b, 1, s, c) and rotary key (b, 1, s, r)
    tokens        tokens so far, the newest included: an int, or a tensor where a graph must not depend on it
    first         number of the token in column 0, where the columns are in order
    order         (s,) or (b, s) the token number of each column, where they are not in order; -1 for a column without one
    positions     (b or 1, s) the position of each column, where callers gave positions of their own
    newest        (b or 1, t) the positions of the newest tokens, likewise
    cached        whether a cache holds them, so that their number changes from call to call
    """

    keys: Tensor
    values: Tensor
    tokens: int | Tensor
    first: int = 0
    order: Tensor | None = None
    positions: Tensor | None = None
    newest: Tensor | None = None
    cached: bool = False


class Cache:
    """What is kept of the tokens seen, for one layer: made for a spec, a batch size and a dtype.

    update(keys, values)      take in new tokens; returns what attention reads (`Kept`), in-flight tokens included
    length                    tokens seen so far
    resident_bytes            bytes of the keys and values held: the cost model's figure
    crop(n)                   back to the first n tokens; negative: without the last -n
    reorder(index)            row i becomes row index[i]: beams swapped, rows dropped or repeated
    repeat(n), select(rows)   every row n times, side by side; only these rows, by number or as booleans
    reset()                   empty again
    saved(), restore(...)     what a file needs of it (`caches.saved` writes and reads files), and the way back

    Callers that give positions of their own (left padding) have them kept too, 8 bytes a token and sequence that
    resident_bytes leaves out. Writing is in place unless gradients flow through what is written; then it is by copy.
    """

    kind = "growing"  # the word by which `cache_for` makes it

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
            raise SpecError(f"a cache's batch must be an integer of 0 or more, found {shown(batch)}")
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise SpecError(f"a cache's dtype must be a floating one, as the layer computes in; found {shown(dtype)}")
        self.spec = spec
        self.batch = batch
        self.dtype = dtype
        self.device = torch.empty(0, device=device).device

    def update(
        self, keys: Tensor, values: Tensor, *, positions: Tensor | None = None, keep: Tensor | None = None
    ) -> Kept:
        """Take in t new tokens: keys (b, k, t, q), values (b, k, t, v), positions (b or 1, t) where they are given.

        `keep` (b or 1, tokens so far), False for padding, where it is said: caches that forget do so by it.
        """
        if isinstance(self.spec.kv, State):
            raise SpecError(f"{described(self)} keeps no keys and values to update")
        return self._append(*self._fitting(keys, values), positions, keep)

    def kept(self) -> Kept:
        """What attention reads of a cache that grows, without new tokens."""
        raise SpecError(f"{described(self)} is read as it is updated")

    @property
    def length(self) -> int:
        """Tokens seen so far."""
        raise NotImplementedError

    @property
    def tokens(self) -> int | Tensor:
        """The same, as a tensor where a compiled graph must not depend on the number."""
        return self.length

    @property
    def resident_bytes(self) -> int:
        """Bytes of the keys and values held."""
        raise NotImplementedError

    def positions(self) -> Tensor:
        """(b or 1, s) the position of each token held, oldest first."""
        raise NotImplementedError

    def next_positions(self, count: int) -> Tensor | None:
        """(b or 1, count) where the next tokens stand, if callers gave positions so far; None: at their token numbers."""
        last = self._last_position()
        return None if last is None else last[:, None] + 1 + torch.arange(count, device=last.device)

    def crop(self, tokens: int) -> None:
        """Forget all but the first `tokens` tokens; a negative number says how many of the last to forget."""
        raise NotImplementedError

    def reorder(self, index: Tensor) -> None:
        """Row i becomes row index[i], for every row: to swap beams, to drop rows that are done, to repeat rows."""
        if index.dim() != 1 or index.is_floating_point() or index.dtype == torch.bool:
            raise SpecError(f"reorder needs integers (rows,), found {index.dtype} {tuple(index.shape)}")
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < self.batch:
            raise SpecError(f"reorder index must lie in [0, {self.batch - 1}], found {index.tolist()}")
        self._select(index.to(self.device))
        self.batch = index.shape[0]

    def repeat(self, times: int) -> None:
        """Every row `times` times, side by side: one prompt for several answers."""
        if isinstance(times, bool) or not isinstance(times, int) or times < 0:
            raise SpecError(f"repeat takes an integer of 0 or more, found {shown(times)}")
        self.reorder(torch.arange(self.batch).repeat_interleave(times))

    def select(self, rows: Tensor) -> None:
        """Only these rows: numbers (rows,), or booleans (batch,)."""
        if rows.dtype == torch.bool and tuple(rows.shape) != (self.batch,):
            raise SpecError(f"select takes a boolean for each of {self.batch} rows, found {tuple(rows.shape)}")
        self.reorder(rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows)

    def reset(self) -> None:
        """Empty, as if new."""
        raise NotImplementedError

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this: words and numbers, and tensors by name."""
        raise NotImplementedError

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `saved`, in a cache of the same kind, spec and batch. The tensors are not written to."""
        raise NotImplementedError

    def _append(self, keys: Tensor, values: Tensor, positions: Tensor | None, keep: Tensor | None) -> Kept:
        """`update` with what fits."""
        raise NotImplementedError

    def _select(self, index: Tensor) -> None:
        """Row i becomes row index[i]; checked."""
        raise NotImplementedError

    def _last_position(self) -> Tensor | None:
        """(b or 1,) where the newest token stands, -1 before the first; None where callers gave no positions."""
        raise NotImplementedError

    def _remaining(self, tokens: int) -> int:
        """`tokens` as crop takes it, checked: how many to keep."""
        length = self.length
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not -length <= tokens <= length:
            raise SpecError(
                f"crop must lie in [-{length}, {length}], as {length} tokens are held; found {shown(tokens)}"
            )
        return tokens if tokens >= 0 else length + tokens

    def _empty(self, tokens: int = 0) -> tuple[Tensor, Tensor]:
        """Keys and values of so many tokens, all zero: what is not visible is multiplied by zero, and must be finite."""
        first, second = (
            torch.zeros(self.batch, heads, tokens, width, dtype=self.dtype, device=self.device)
            for heads, width in part_shapes(self.spec)
        )
        return first, second

    def _fitting(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values in the dtype that is kept, to which they are cast under autocast alone. Raises where they do not fit."""
        if torch.is_autocast_enabled(self.device.type):
            keys, values = keys.to(self.dtype), values.to(self.dtype)
        for name, tensor, (heads, width) in zip(
            ("keys", "values"), (keys, values), part_shapes(self.spec), strict=True
        ):
            wanted = (self.batch, heads, keys.shape[2], width)
            if tuple(tensor.shape) != wanted:
                raise SpecError(f"the cache of {to_text(self.spec)} takes {name} {wanted}, found {tuple(tensor.shape)}")
            if tensor.dtype != self.dtype or tensor.device != self.device:
                raise SpecError(
                    f"the cache holds {self.dtype} on {self.device}; found {name} in {tensor.dtype} on {tensor.device}"
                )
        return keys, values

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({to_text(self.spec)}, batch={self.batch}, length={self.length}, dtype={self.dtype})"
        )


def part_shapes(spec: AttentionSpec) -> tuple[tuple[int, int], tuple[int, int]]:
    """(heads, width) of the two things kept a token: keys and values, or the latent and the rotary key."""
    if isinstance(spec.kv, Heads):
        return (spec.kv.num_kv_heads, spec.kv.head_dim), (spec.kv.num_kv_heads, spec.kv.v_head_dim)
    if isinstance(spec.kv, Latent):
        return (1, spec.kv.rank), (1, spec.kv.rope_dim)
    raise SpecError(f"linear attention keeps a state, not tokens: {to_text(spec)} needs a StateCache")


def refuse_two_sided(spec: AttentionSpec) -> None:
    """Raise for layers whose earlier outputs depend on later tokens: going on from a cache would not give the same."""
    if isinstance(spec.mask, Bidirectional | Band) and not isinstance(spec.source, Cross):
        raise SpecError(
            f"{to_text(spec)} sees both ways, so what came before depends on what comes next: it keeps no cache; "
            "caches are for causal, windowed and chunked masks and for cross-attention"
        )


def described(cache: Cache) -> str:
    """A cache for a message."""
    return f"{type(cache).__name__} of {to_text(cache.spec)}, batch {cache.batch}, {cache.dtype} on {cache.device}"
