"""A cache of fixed capacity: the same shapes and the same graph at every step."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.cost.layer import cache_elements
from manyheads.errors import SpecError
from manyheads.layer.caches.base import FAR, Cache, Kept, copied, part_shapes, refuse_two_sided, rows
from manyheads.quoting import shown
from manyheads.spec import AttentionSpec, Cross, to_text

__all__ = ["StaticCache"]


class StaticCache(Cache):
    """Room for `capacity` tokens, taken at once. How many are held is a tensor, so a compiled step has one graph.

    Attention reads the whole capacity at every step: the slots that hold nothing lie in the future of every query.
    """

    def __init__(
        self,
        spec: AttentionSpec,
        *,
        batch: int,
        capacity: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        refuse_two_sided(spec)
        if isinstance(spec.source, Cross):
            raise SpecError(f"{to_text(spec)} projects its memory once and keeps that: use a growing cache")
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise SpecError(f"a static cache needs a capacity of 1 token or more, found {shown(capacity)}")
        self.capacity = capacity
        # zeros: what is not visible is multiplied by zero, and must be finite
        self._keys, self._values = (
            torch.zeros(batch, heads, capacity, width, dtype=dtype, device=self.device)
            for heads, width in part_shapes(spec)
        )
        self._held = torch.zeros((), dtype=torch.int64, device=self.device)

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        *,
        positions: Tensor | None = None,
        keep: Tensor | None = None,  # noqa: ARG002 - it forgets nothing
    ) -> Kept:
        """Take in t new tokens and return all slots; see `Cache`. Raises where they do not fit (compiled: asserts)."""
        keys, values = self._fitting(keys, values)
        count = keys.shape[2]
        self._check_room(count)
        slots = self._held + torch.arange(count, device=self.device)
        self._write_positions(positions, slots)
        self._keys = copied(self._keys, slots, keys)
        self._values = copied(self._values, slots, values)
        total = self._held + count
        self._held.copy_(total)
        return Kept(self._keys, self._values, total, positions=self._positions)

    def _check_room(self, count: int) -> None:
        if torch.compiler.is_compiling():
            torch._assert_async(self._held <= self.capacity - count, "a static cache is full")
        elif self.length + count > self.capacity:
            raise SpecError(
                f"a static cache of {self.capacity} tokens holds {self.length}: {count} more do not fit, "
                f"{self.capacity - self.length} would"
            )

    def _write_positions(self, positions: Tensor | None, slots: Tensor) -> None:
        if positions is None:
            positions = self.next_positions(slots.shape[0])
            if positions is None:
                return
        if self._positions is None:
            numbers = torch.arange(self.capacity, device=self.device)
            numbers = torch.where(numbers < self._held, numbers, FAR)
            self._positions = numbers.expand(self.batch, -1).clone()
        self._positions.index_copy_(1, slots, rows(positions, self.batch).to(torch.int64))

    @property
    def length(self) -> int:
        """Tokens held (reads the device)."""
        return int(self._held)

    @property
    def tokens(self) -> Tensor:
        """Tokens held, as a tensor."""
        return self._held.clone()

    @property
    def nbytes(self) -> int:
        """Bytes of the whole capacity."""
        return self.batch * self.capacity * cache_elements(self.spec) * self._keys.element_size()

    def positions(self) -> Tensor:
        """(b or 1, s) positions of the tokens held."""
        if self._positions is None:
            return torch.arange(self.length, device=self.device)[None]
        return self._positions[:, : self.length]

    def _last_position(self) -> Tensor:
        assert self._positions is not None
        last = self._positions.index_select(1, (self._held - 1).clamp(min=0)[None])[:, 0]
        return torch.where(self._held > 0, last, -1)

    def crop(self, tokens: int) -> None:
        """Forget the tokens after the first `tokens`."""
        kept = self._kept_count(tokens)
        self._held.fill_(kept)
        if self._positions is not None:
            self._positions[:, kept:] = FAR

    def reset(self) -> None:
        """Empty again."""
        self._held.zero_()
        self._positions = None
        self._keys, self._values = self._keys.detach(), self._values.detach()

    def _tensors(self) -> tuple[str, ...]:
        return ("_keys", "_values", "_positions")
