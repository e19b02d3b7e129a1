"""A rolling cache: the W tokens that a window still shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.layer.caches.base import Cache, Kept
from manyheads.layer.caches.rows import Rows
from manyheads.layer.caches.storage import KeysValues
from manyheads.spec import AttentionSpec, Chunk, Window, to_text

__all__ = ["WindowCache"]


class WindowCache(Cache):
    """At most W tokens a sequence, W the keys of a window or the size of a chunk.

    The tokens lie in order and the oldest go first, until padding or positions are given: from then on each sequence keeps
    what is in sight from where it stands, in W slots (`rows.Rows`), where one new token replaces one that fell out of
    sight. A block of new tokens is read together with those before it, in flight, so that early queries do not see
    overwritten keys (cases O58, O59).
    """

    kind = "rolling"
    _rows: Rows | None
    _oldest: int

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        if not isinstance(spec.mask, Window | Chunk):
            raise SpecError(f"a rolling cache is for windowed and chunked masks, found {to_text(spec)}")
        self.mask = spec.mask
        self.size = spec.mask.keys if isinstance(spec.mask, Window) else spec.mask.size
        self.reset()

    def _append(self, keys: Tensor, values: Tensor, positions: Tensor | None, keep: Tensor | None) -> Kept:
        """The new tokens and all that one of them may see."""
        if self._rows is None and (positions is not None or keep is not None):
            self._rows = self._parted(keep)
        if self._rows is not None:
            return self._by_position(keys, values, self._rows, positions, keep)
        self._held.append(keys, values)
        seen = self._held.read(self.size - 1 + keys.shape[2])
        self._held.buffers.trim()
        self._count()
        return Kept(*seen, self.length, first=self.length - seen[0].shape[2])

    def _parted(self, keep: Tensor | None) -> Rows:
        """What is held so far, in as many slots as there ever are."""
        numbers = torch.arange(self._oldest, self._oldest + self.size, device=self.device)
        numbers = torch.where(numbers < self.length, numbers, -1)
        self._held.buffers.pad(self.size)
        return Rows(numbers, Rows.dropped(self._oldest, keep, batch=self.batch, device=self.device))

    def _by_position(
        self, keys: Tensor, values: Tensor, held: Rows, positions: Tensor | None, keep: Tensor | None
    ) -> Kept:
        first, count = self.length, keys.shape[2]
        if positions is None:
            positions = self.next_positions(count)
            assert positions is not None
        positions = positions.expand(self.batch, -1).to(torch.int64)
        if count == 1:
            self._held.put(held.replaced(self.mask, first, positions, keep), keys, values)
            self._count()
            return Kept(*self._held.read(), self.length, order=held.numbers, positions=held.positions)
        held.check(self.mask, positions, None if keep is None else keep[:, first : first + count])
        order, places = held.joined(first, positions)
        self._held.append(keys, values)
        seen = self._held.read()
        if count:
            self._held.buffers.gather(held.kept(first, positions, keep))
        self._count()
        return Kept(*seen, self.length, order=order, positions=places)

    def _count(self) -> None:
        self._oldest = max(self._oldest, self.length - self.size)

    @property
    def length(self) -> int:
        """Tokens seen; at most `size` of them are held."""
        return self._held.seen

    @property
    def held(self) -> int:
        """Tokens held of each sequence, of those with fewer than others as many as of the others."""
        return self._held.tokens if self._rows is None else self._rows.in_order().shape[1]

    @property
    def resident_bytes(self) -> int:
        """Bytes of the tokens held, min(S, W) of them."""
        slots = self._held.tokens
        return self._held.resident_bytes // slots * self.held if slots else 0

    def positions(self) -> Tensor:
        """(b or 1, s) positions of the tokens held, oldest first."""
        if self._rows is not None:
            return self._rows.in_order()
        return torch.arange(self._oldest, self.length, device=self.device)[None]

    def _last_position(self) -> Tensor | None:
        if self._rows is None:
            return None
        if not self.length:
            return torch.full((self.batch,), -1, device=self.device)
        return self._rows.last(self.length)

    def crop(self, tokens: int) -> None:
        """Forget the tokens after the first `tokens`, as long as the next query would still see all its keys."""
        left, length = self._remaining(tokens), self.length
        if not left:
            self.reset()
            return
        if self._rows is not None:
            if left <= self._oldest:
                raise SpecError(
                    f"a rolling cache of {self.size} knows where its last tokens stand, {self._oldest} to "
                    f"{length - 1}: crop to {self._oldest + 1} or more, or to 0; asked for {left}"
                )
            self._rows.cropped(self.mask, left)
            self._held.seen = left
            return
        if self._held.missing_after(length - left, self.size):
            raise SpecError(
                f"a rolling cache of {self.size} holds tokens {self._oldest} to {length - 1}: back at {left} the next "
                f"query would see token {max(left - self.size + 1, 0)}, which is gone; crop to "
                f"{self._oldest + self.size - 1} or more, or to 0"
            )
        self._held.crop(length - left)

    def reset(self) -> None:
        """Empty again."""
        self._held = KeysValues(keep=self.size)
        self._held.begin(*self._empty())
        self._oldest, self._rows = 0, None

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this; see `Cache`."""
        told, tensors = self._held.saved()
        return {**told, "oldest": self._oldest}, {**tensors, **({} if self._rows is None else self._rows.tensors())}

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `saved`."""
        self.reset()
        self._held.restore(told, tensors)
        self._oldest = told["oldest"]
        self._rows = Rows.of(tensors) if "numbers" in tensors else None

    def _select(self, index: Tensor) -> None:
        self._held.buffers.select(index)
        if self._rows is not None:
            self._rows.select(index)
