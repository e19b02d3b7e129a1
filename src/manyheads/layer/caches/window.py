"""A rolling cache: the last W tokens, in a ring."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.cost.layer import cache_elements
from manyheads.errors import SpecError
from manyheads.layer.caches.base import Cache, Kept, copied, part_shapes, rows
from manyheads.spec import AttentionSpec, Chunk, Window, to_text

__all__ = ["WindowCache"]


class WindowCache(Cache):
    """At most W tokens, W the keys of a window or the size of a chunk: token n lies in slot n mod W.

    One new token replaces the one that fell out of sight. A block of T new tokens is read together with the W - 1 before
    it, in flight, so that early queries do not see overwritten keys (cases O58, O59); then the last W stay.
    """

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        if not isinstance(spec.mask, Window | Chunk):
            raise SpecError(f"a rolling cache is for windowed and chunked masks, found {to_text(spec)}")
        self.size = spec.mask.keys if isinstance(spec.mask, Window) else spec.mask.size
        self._keys, self._values = (
            torch.zeros(batch, heads, self.size, width, dtype=dtype, device=self.device)
            for heads, width in part_shapes(spec)
        )
        self._length = self._oldest = 0

    def append(self, keys: Tensor, values: Tensor, *, positions: Tensor | None = None) -> Kept:
        """Take in t new tokens; returns the ring, or for more than one token what is in flight; see `Cache`."""
        self._check(keys, values)
        count = keys.shape[2]
        positions = self.next_positions(count) if positions is None else positions
        if positions is not None:
            positions = rows(positions, self.batch).to(torch.int64)
            if self._positions is None:
                self._positions = self._order().expand(self.batch, -1).clone()
        return self._step(keys, values, positions) if count == 1 else self._block(keys, values, positions)

    def _step(self, keys: Tensor, values: Tensor, positions: Tensor | None) -> Kept:
        self._store(keys, values, positions)
        if self._length <= self.size:
            keys, values = (buffer[:, :, : self._length] for buffer in (self._keys, self._values))
            return Kept(keys, values, self._length, positions=None if self._positions is None else self.positions())
        return Kept(self._keys, self._values, self._length, order=self._order(), positions=self._positions)

    def _block(self, keys: Tensor, values: Tensor, positions: Tensor | None) -> Kept:
        before = min(self._length, self.size - 1)
        slots = self._slots(self._length - before, before)
        keys_seen, values_seen = (
            torch.cat((buffer[:, :, slots], new), 2) for buffer, new in ((self._keys, keys), (self._values, values))
        )
        seen = None
        if positions is not None and self._positions is not None:
            seen = torch.cat((self._positions[:, slots], positions), 1)
        first, skipped = self._length - before, max(keys.shape[2] - self.size, 0)
        self._length += skipped
        self._store(keys[:, :, skipped:], values[:, :, skipped:], None if positions is None else positions[:, skipped:])
        return Kept(keys_seen, values_seen, self._length, first=first, positions=seen)

    def _store(self, keys: Tensor, values: Tensor, positions: Tensor | None) -> None:
        slots = self._slots(self._length, keys.shape[2])
        self._keys, self._values = copied(self._keys, slots, keys), copied(self._values, slots, values)
        if positions is not None and self._positions is not None:
            self._positions.index_copy_(1, slots, positions)
        self._length += keys.shape[2]
        self._oldest = max(self._oldest, self._length - self.size)

    def _slots(self, start: int, count: int) -> Tensor:
        return (start + torch.arange(count, device=self.device)) % self.size

    def _order(self) -> Tensor:
        """(W,) the number of the newest token that belongs in each slot, negative where none has come yet."""
        newest = self._length - 1
        return newest - (newest - torch.arange(self.size, device=self.device)) % self.size

    @property
    def length(self) -> int:
        """Tokens seen; at most `size` of them are held."""
        return self._length

    @property
    def held(self) -> int:
        """Tokens held."""
        return self._length - self._oldest

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held, min(S, W) of them."""
        return self.batch * self.held * cache_elements(self.spec) * self._keys.element_size()

    def positions(self) -> Tensor:
        """(b or 1, s) positions of the tokens held, oldest first."""
        if self._positions is None:
            return torch.arange(self._oldest, self._length, device=self.device)[None]
        return self._positions[:, self._slots(self._oldest, self.held)]

    def _last_position(self) -> Tensor:
        assert self._positions is not None
        if not self._length:
            return self._positions.new_full((self.batch,), -1)
        return self._positions[:, (self._length - 1) % self.size]

    def crop(self, tokens: int) -> None:
        """Forget the tokens after the first `tokens`, as long as the next query would still see all its keys."""
        kept = self._kept_count(tokens)
        needed = max(kept - self.size + 1, 0)
        if kept and self._oldest > needed:
            raise SpecError(
                f"a rolling cache of {self.size} holds tokens {self._oldest} to {self._length - 1}: back at {kept} the next "
                f"query would see token {needed}, which is gone; crop to {self._oldest + self.size - 1} or more, or to 0"
            )
        self._length, self._oldest = kept, self._oldest if kept else 0

    def reset(self) -> None:
        """Empty again."""
        self._length, self._oldest, self._positions = 0, 0, None
        self._keys, self._values = self._keys.detach(), self._values.detach()

    def _tensors(self) -> tuple[str, ...]:
        return ("_keys", "_values", "_positions")
