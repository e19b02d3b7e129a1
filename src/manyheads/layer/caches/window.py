"""A rolling cache: the W tokens that a window still shows, in a ring."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.cost.layer import cache_elements
from manyheads.errors import SpecError
from manyheads.layer.caches.base import Cache, Kept, copied, needs_gradient, part_shapes, rows
from manyheads.layer.caches.rows import Rows
from manyheads.spec import AttentionSpec, Chunk, Window, to_text

__all__ = ["WindowCache"]


class WindowCache(Cache):
    """At most W tokens a sequence, W the keys of a window or the size of a chunk.

    Token n lies in slot n mod W, and the ring forgets by number, until padding or positions are given: from then on each
    sequence keeps what is in sight from where it stands (`rows.Rows`). One new token replaces one that fell out of sight. A
    block of T new tokens is read together with those before it, in flight, so that early queries do not see overwritten
    keys (cases O58, O59).
    """

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        if not isinstance(spec.mask, Window | Chunk):
            raise SpecError(f"a rolling cache is for windowed and chunked masks, found {to_text(spec)}")
        self.mask = spec.mask
        self.size = spec.mask.keys if isinstance(spec.mask, Window) else spec.mask.size
        self._keys, self._values = (
            torch.zeros(batch, heads, self.size, width, dtype=dtype, device=self.device)
            for heads, width in part_shapes(spec)
        )
        self._length = self._oldest = 0
        self._rows: Rows | None = None

    def append(
        self, keys: Tensor, values: Tensor, *, positions: Tensor | None = None, keep: Tensor | None = None
    ) -> Kept:
        """Take in t new tokens; returns the ring, or for more than one token what is in flight; see `Cache`."""
        keys, values = self._fitting(keys, values)
        if self._rows is None and (positions is not None or keep is not None):
            gone = Rows.dropped(self._oldest, keep, batch=self.batch, device=self.device)
            self._rows = Rows(torch.where(self._order() < self._oldest, -1, self._order()), gone)
        if self._rows is not None:
            return self._by_position(keys, values, self._rows, positions, keep)
        return self._step(keys, values) if keys.shape[2] == 1 else self._block(keys, values)

    def _by_position(
        self, keys: Tensor, values: Tensor, held: Rows, positions: Tensor | None, keep: Tensor | None
    ) -> Kept:
        first, count = self._length, keys.shape[2]
        if positions is None:
            positions = self.next_positions(count)
            assert positions is not None
        positions = rows(positions, self.batch).to(torch.int64)
        if count == 1:
            slots = held.replaced(self.mask, first, positions, keep)[:, None, None, None]
            self._keys, self._values = placed(self._keys, slots, keys), placed(self._values, slots, values)
            self._count(1)
            return Kept(self._keys, self._values, self._length, order=held.numbers, positions=held.positions)
        held.check(self.mask, positions, None if keep is None else keep[:, first : first + count])
        order, places = held.joined(first, positions)
        seen = torch.cat((self._keys, keys), 2), torch.cat((self._values, values), 2)
        if count:
            stay = held.chosen(first, positions, keep)[:, None, :, None]
            self._keys, self._values = (x.gather(2, stay.expand(-1, x.shape[1], -1, x.shape[3])) for x in seen)
        self._count(count)
        return Kept(*seen, self._length, order=order, positions=places)

    def _step(self, keys: Tensor, values: Tensor) -> Kept:
        self._store(keys, values)
        if self._length <= self.size:
            keys, values = (buffer[:, :, : self._length] for buffer in (self._keys, self._values))
            return Kept(keys, values, self._length)
        return Kept(self._keys, self._values, self._length, order=self._order())

    def _block(self, keys: Tensor, values: Tensor) -> Kept:
        before = min(self._length, self.size - 1)
        slots = self._slots(self._length - before, before)
        seen = (
            torch.cat((buffer[:, :, slots], new), 2) for buffer, new in ((self._keys, keys), (self._values, values))
        )
        keys_seen, values_seen = seen
        first, skipped = self._length - before, max(keys.shape[2] - self.size, 0)
        self._length += skipped
        self._store(keys[:, :, skipped:], values[:, :, skipped:])
        return Kept(keys_seen, values_seen, self._length, first=first)

    def _store(self, keys: Tensor, values: Tensor) -> None:
        slots = self._slots(self._length, keys.shape[2])
        self._keys, self._values = copied(self._keys, slots, keys), copied(self._values, slots, values)
        self._count(keys.shape[2])

    def _count(self, tokens: int) -> None:
        self._length += tokens
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
        """Tokens held of each sequence, of those with fewer than others as many as of the others."""
        return self._length - self._oldest if self._rows is None else self._rows.in_order().shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held, min(S, W) of them."""
        return self.batch * self.held * cache_elements(self.spec) * self._keys.element_size()

    def positions(self) -> Tensor:
        """(b or 1, s) positions of the tokens held, oldest first."""
        if self._rows is not None:
            return self._rows.in_order()
        return torch.arange(self._oldest, self._length, device=self.device)[None]

    def next_positions(self, count: int) -> Tensor | None:
        """(b, count) where the next tokens stand, once sequences have parted company; see `Cache`."""
        if self._rows is None:
            return None
        after = torch.arange(count, device=self.device)
        if not self._length:
            return after.expand(self.batch, -1)
        return self._rows.last(self._length)[:, None] + 1 + after

    def crop(self, tokens: int) -> None:
        """Forget the tokens after the first `tokens`, as long as the next query would still see all its keys."""
        kept = self._kept_count(tokens)
        if kept and self._rows is not None:
            if kept <= self._oldest:
                raise SpecError(
                    f"a rolling cache of {self.size} knows where its last tokens stand, {self._oldest} to "
                    f"{self._length - 1}: crop to {self._oldest + 1} or more, or to 0; asked for {kept}"
                )
            self._rows.cropped(self.mask, kept)
        elif kept and self._oldest > max(kept - self.size + 1, 0):
            needed = max(kept - self.size + 1, 0)
            raise SpecError(
                f"a rolling cache of {self.size} holds tokens {self._oldest} to {self._length - 1}: back at {kept} the next "
                f"query would see token {needed}, which is gone; crop to {self._oldest + self.size - 1} or more, or to 0"
            )
        if not kept:
            self._oldest, self._rows = 0, None
        self._length = kept

    def reorder(self, index: Tensor) -> None:
        """Row i becomes row index[i]; see `Cache`."""
        super().reorder(index)
        if self._rows is not None:
            self._rows.selected(index.to(self.device))

    def reset(self) -> None:
        """Empty again."""
        self._length, self._oldest, self._rows = 0, 0, None
        self._keys, self._values = self._keys.detach(), self._values.detach()

    def _tensors(self) -> tuple[str, ...]:
        return ("_keys", "_values")


def placed(buffer: Tensor, slots: Tensor, new: Tensor) -> Tensor:
    """`buffer` (b, k, w, d) with `new` (b, k, 1, d) in a slot (b, 1, 1, 1) of each row: in place, or a copy where gradients
    flow."""
    index = slots.expand(-1, new.shape[1], -1, new.shape[3])
    return buffer.scatter(2, index, new) if needs_gradient(buffer, new) else buffer.scatter_(2, index, new)
