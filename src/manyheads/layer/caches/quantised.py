"""A growing cache in eight bits, with a scale for every token and head."""

from __future__ import annotations

import torch
from torch import Tensor

from manyheads.cost.formulas import int8_part_bytes
from manyheads.layer.caches.base import Kept, grown, part_shapes
from manyheads.layer.caches.growing import GrowingCache
from manyheads.spec import AttentionSpec

__all__ = ["QuantisedCache", "quantised"]

_LARGEST = 127
_SCALE = torch.float16


class QuantisedCache(GrowingCache):
    """x ~ s · n with n in int8 and one 16-bit scale s a token and head (as ggml's q8_0 where heads are 32 wide).

    Attention reads every token through its eight bits, the newest too, so that chunks and single steps agree. Rounding
    has no gradient: none flows into what is kept.
    """

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        self._key_scales, self._value_scales = (
            torch.empty(batch, heads, 0, 1, dtype=_SCALE, device=self.device) for heads, _ in part_shapes(spec)
        )

    def _room(self, heads: int, width: int) -> Tensor:
        return torch.empty(self.batch, heads, 0, width, dtype=torch.int8, device=self.device)

    def _write(self, keys: Tensor, values: Tensor) -> None:
        (keys, key_scales), (values, value_scales) = quantised(keys.detach()), quantised(values.detach())
        self._key_scales = grown(self._key_scales, key_scales, self._length)
        self._value_scales = grown(self._value_scales, value_scales, self._length)
        super()._write(keys, values)

    def kept(self) -> Kept:
        """All tokens, widened."""
        pairs = ((self._keys, self._key_scales), (self._values, self._value_scales))
        wide = (n[:, :, : self._length].to(self.dtype) * s[:, :, : self._length].to(self.dtype) for n, s in pairs)
        keys, values = wide
        return Kept(keys, values, self._length, positions=None if self._positions is None else self.positions())

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers and of the scales."""
        token = sum(int(int8_part_bytes(heads, width)) for heads, width in part_shapes(self.spec) if width)
        return self.batch * self._length * token

    def _tensors(self) -> tuple[str, ...]:
        return (*super()._tensors(), "_key_scales", "_value_scales")


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """n = round(x / s) in int8 and s = max|x| / 127 over the last axis, s rounded to 16 bits first."""
    if not x.shape[-1]:
        return x.to(torch.int8), x.new_zeros((*x.shape[:-1], 1), dtype=_SCALE)
    wide = x.to(torch.float32) if x.dtype != torch.float64 else x
    scales = (wide.abs().amax(-1, keepdim=True) / _LARGEST).to(_SCALE)
    # a row too small for 16 bits has the scale 0, and is zero
    divisor = torch.where(scales == 0, 1.0, scales.to(wide.dtype))
    return (wide / divisor).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scales
