"""Caches that grow with the sequence: keys and values or the latents of MLA, in the layer's dtype or in eight bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyheads.layer.caches.base import Cache, Kept, refuse_two_sided
from manyheads.layer.caches.storage import KeysValues, TokenBuffers
from manyheads.spec import AttentionSpec

__all__ = ["GrowingCache", "QuantisedCache"]


class GrowingCache(Cache):
    """Every token, in buffers that grow in place (`caches.storage`).

    Of latent attention the latent after its norm and the rotary key, side by side: c + r elements a token.
    """

    stored: torch.dtype | None = None
    _places: TokenBuffers | None  # positions (b, 1, s), where callers gave some

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        refuse_two_sided(spec)
        self.reset()

    def _append(self, keys: Tensor, values: Tensor, positions: Tensor | None, keep: Tensor | None) -> Kept:  # noqa: ARG002
        """All tokens; padding is kept too."""
        self._append_positions(positions, keys.shape[2])
        self._held.append(keys, values)
        return self.kept()

    def kept(self) -> Kept:
        """All tokens, without new ones."""
        keys, values = self._held.read()
        return Kept(keys, values, self.length, positions=None if self._places is None else self.positions())

    def _append_positions(self, positions: Tensor | None, count: int) -> None:
        if positions is None:
            positions = self.next_positions(count)
            if positions is None:
                return
        if self._places is None:
            self._places = TokenBuffers()
            self._places.append([self._numbers().expand(self.batch, -1)[:, None]])
        self._places.append([positions.to(torch.int64).expand(self.batch, -1)[:, None]])

    @property
    def length(self) -> int:
        """Tokens held."""
        return self._held.tokens

    @property
    def resident_bytes(self) -> int:
        """Bytes of the tokens held, scales included; room for more is not counted."""
        return self._held.resident_bytes

    def positions(self) -> Tensor:
        """(b or 1, s) positions of the tokens held."""
        return self._numbers() if self._places is None else self._places.view()[0][:, 0]

    def _numbers(self) -> Tensor:
        """(1, s) the numbers of the tokens held, from 0."""
        return torch.arange(self.length, device=self.device)[None]

    def _last_position(self) -> Tensor | None:
        if self._places is None:
            return None
        if not self.length:
            return torch.full((self.batch,), -1, device=self.device)
        return self.positions()[:, -1]

    def crop(self, tokens: int) -> None:
        """Forget the tokens after the first `tokens`."""
        back = self.length - self._remaining(tokens)
        self._held.crop(back)
        if self._places is not None:
            self._places.drop_last(back)

    def reset(self) -> None:
        """Empty again."""
        self._held = KeysValues(self.stored)
        self._held.begin(*self._empty())
        self._places = None

    def _select(self, index: Tensor) -> None:
        self._held.buffers.select(index)
        if self._places is not None:
            self._places.select(index)

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this; see `Cache`."""
        told, tensors = self._held.saved()
        return told, tensors if self._places is None else {**tensors, "positions": self._places.view()[0]}

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `saved`."""
        self.reset()
        self._held.restore(told, tensors)
        if "positions" in tensors:
            self._places = TokenBuffers()
            self._places.replace([tensors["positions"]])


class QuantisedCache(GrowingCache):
    """x ~ s · n with n in int8 and one 16-bit scale s a token and head (as ggml's q8_0 where heads are 32 wide), keys
    Hadamard-rotated before they are rounded (`ops.hadamard`).

    Attention reads every token through its eight bits, the newest too, so that chunks and single steps agree. Rounding
    has no gradient: none flows into what is kept.
    """

    kind = "int8"
    stored = torch.int8
