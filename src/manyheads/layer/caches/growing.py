"""Caches that grow with the sequence: keys and values, and the latent of MLA."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.cost.layer import cache_elements
from manyheads.errors import SpecError
from manyheads.layer.caches.base import Cache, Kept, grown, part_shapes, refuse_two_sided, rows
from manyheads.spec import AttentionSpec, Latent, to_text

__all__ = ["GrowingCache", "LatentCache"]


class GrowingCache(Cache):
    """Every token, in place: room for twice as many where it runs out, so a token is copied twice at most on average."""

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        refuse_two_sided(spec)
        self._length = 0
        self._keys, self._values = (self._room(*shape) for shape in part_shapes(spec))

    def _room(self, heads: int, width: int) -> Tensor:
        return torch.empty(self.batch, heads, 0, width, dtype=self.dtype, device=self.device)

    def append(
        self,
        keys: Tensor,
        values: Tensor,
        *,
        positions: Tensor | None = None,
        keep: Tensor | None = None,  # noqa: ARG002 - it forgets nothing
    ) -> Kept:
        """Take in t new tokens and return all; see `Cache`."""
        keys, values = self._fitting(keys, values)
        self._append_positions(positions, keys.shape[2])
        self._write(keys, values)
        self._length += keys.shape[2]
        return self.kept()

    def _write(self, keys: Tensor, values: Tensor) -> None:
        self._keys = grown(self._keys, keys, self._length)
        self._values = grown(self._values, values, self._length)

    def kept(self) -> Kept:
        """All tokens, without new ones."""
        keys, values = (buffer[:, :, : self._length] for buffer in (self._keys, self._values))
        return Kept(keys, values, self._length, positions=None if self._positions is None else self.positions())

    def _append_positions(self, positions: Tensor | None, count: int) -> None:
        if positions is None:
            positions = self.next_positions(count)
            if positions is None:
                return
        if self._positions is None:
            self._positions = rows(self.positions(), self.batch).clone()
        self._positions = grown(self._positions, rows(positions, self.batch).to(torch.int64), self._length, dim=1)

    @property
    def length(self) -> int:
        """Tokens held."""
        return self._length

    @property
    def nbytes(self) -> int:
        """Bytes of the tokens held; room for more is not counted."""
        return self.batch * self._length * cache_elements(self.spec) * self._keys.element_size()

    def positions(self) -> Tensor:
        """(b or 1, s) positions of the tokens held."""
        if self._positions is None:
            return torch.arange(self._length, device=self.device)[None]
        return self._positions[:, : self._length]

    def _last_position(self) -> Tensor:
        assert self._positions is not None
        if not self._length:
            return self._positions.new_full((self.batch,), -1)
        return self._positions[:, self._length - 1]

    def crop(self, tokens: int) -> None:
        """Forget the tokens after the first `tokens`."""
        self._length = self._kept_count(tokens)

    def reset(self) -> None:
        """Empty again; the room stays."""
        self._length, self._positions = 0, None
        self._keys, self._values = self._keys.detach(), self._values.detach()

    def _tensors(self) -> tuple[str, ...]:
        return ("_keys", "_values", "_positions")


class LatentCache(GrowingCache):
    """The latent of multi-head latent attention, after its norm, and the rotary key, after its turn: c + r a token."""

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        if not isinstance(spec.kv, Latent):
            raise SpecError(f"a LatentCache is for latent attention, found {to_text(spec)}")
        super().__init__(spec, batch=batch, dtype=dtype, device=device)

    @property
    def latent(self) -> Tensor:
        """(b, s, c)"""
        return self._keys[:, 0, : self._length]

    @property
    def rotary_key(self) -> Tensor:
        """(b, s, r)"""
        return self._values[:, 0, : self._length]
