"""A cache of fixed capacity: the same shapes and the same graph at every step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.layer.caches.base import FAR, Cache, Kept, refuse_two_sided
from manyheads.quoting import shown
from manyheads.spec import AttentionSpec, Cross, to_text

__all__ = ["StaticCache"]


class StaticCache(Cache):
    """Room for `capacity` tokens, taken at once. How many are held is a tensor, so a compiled step has one graph.

    Attention reads the whole capacity at every step: the slots that hold nothing lie in the future of every query.
    """

    kind = "static"

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
        self._keys, self._values = self._empty(capacity)
        self._held = torch.zeros((), dtype=torch.int64, device=self.device)
        self._positions: Tensor | None = None  # (b, capacity), where callers gave some

    def _append(self, keys: Tensor, values: Tensor, positions: Tensor | None, keep: Tensor | None) -> Kept:  # noqa: ARG002
        """All slots; padding is kept too. Raises where the tokens do not fit (compiled: asserts)."""
        count = keys.shape[2]
        self._check_room(count)
        slots = self._held + torch.arange(count, device=self.device)
        self._write_positions(positions, slots)
        self._keys = _copied(self._keys, slots, keys)
        self._values = _copied(self._values, slots, values)
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
        self._positions.index_copy_(1, slots, positions.expand(self.batch, -1).to(torch.int64))

    @property
    def length(self) -> int:
        """Tokens held (reads the device)."""
        return int(self._held)

    @property
    def tokens(self) -> Tensor:
        """Tokens held, as a tensor."""
        return self._held.clone()

    @property
    def resident_bytes(self) -> int:
        """Bytes of the whole capacity."""
        return self._keys.nbytes + self._values.nbytes

    def positions(self) -> Tensor:
        """(b or 1, s) positions of the tokens held."""
        if self._positions is None:
            return torch.arange(self.length, device=self.device)[None]
        return self._positions[:, : self.length]

    def _last_position(self) -> Tensor | None:
        if self._positions is None:
            return None
        last = self._positions.index_select(1, (self._held - 1).clamp(min=0)[None])[:, 0]
        return torch.where(self._held > 0, last, -1)

    def crop(self, tokens: int) -> None:
        """Forget the tokens after the first `tokens`."""
        kept = self._remaining(tokens)
        self._held.fill_(kept)
        if self._positions is not None:
            self._positions[:, kept:] = FAR

    def reset(self) -> None:
        """Empty again."""
        self._held.zero_()
        self._positions = None
        self._keys, self._values = self._keys.detach(), self._values.detach()

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this; see `Cache`."""
        length = self.length
        tensors = {"keys0": self._keys[:, :, :length], "values0": self._values[:, :, :length]}
        if self._positions is not None:
            tensors["positions"] = self.positions()
        return {"tokens": length, "capacity": self.capacity}, tensors

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:  # noqa: ARG002
        """The opposite of `saved`."""
        self.reset()
        self.update(tensors["keys0"], tensors["values0"], positions=tensors.get("positions"))

    def _select(self, index: Tensor) -> None:
        self._keys, self._values = self._keys.index_select(0, index), self._values.index_select(0, index)
        if self._positions is not None:
            self._positions = self._positions.index_select(0, index)


def _copied(buffer: Tensor, index: Tensor, new: Tensor) -> Tensor:
    """`buffer` with the tokens `new` in the slots `index`: in place, or a copy where gradients flow."""
    if torch.is_grad_enabled() and (buffer.requires_grad or new.requires_grad):
        return buffer.index_copy(2, index, new)
    return buffer.index_copy_(2, index, new)
