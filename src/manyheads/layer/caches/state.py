"""What linear attention keeps: a running state of fixed size, and the last inputs of its short convolution."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from manyheads.cost.layer import conv_channels
from manyheads.errors import SpecError
from manyheads.layer.caches.base import Cache, refuse_two_sided
from manyheads.ops.linear import LinearState
from manyheads.spec import AttentionSpec, State, to_text

__all__ = ["StateCache"]


class StateCache(Cache):
    """S (b, n, f, v), where normalised z (b, n, f), and the last taps - 1 inputs of the convolution (b, channels, taps - 1).

    The same size whatever the length; the layer reads `state` and calls `advance`. A state cannot be taken back: crop knows
    all tokens and none. `dtype` is what the state is kept in; float32 is wise for 16-bit layers, since a sum over
    thousands of tokens loses in 16 bits.
    """

    def __init__(
        self, spec: AttentionSpec, *, batch: int, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        super().__init__(spec, batch=batch, dtype=dtype, device=device)
        kv = spec.kv
        if not isinstance(kv, State):
            raise SpecError(f"a StateCache is for linear attention, found {to_text(spec)}")
        refuse_two_sided(spec)
        n, f, v = kv.num_state_heads, kv.feature_dim, kv.v_head_dim
        self._sums = torch.zeros(batch, n, f, v, dtype=dtype, device=self.device)
        self._norms = torch.zeros(batch, n, f, dtype=dtype, device=self.device) if kv.normalised else None
        taps = max(kv.conv_width - 1, 0)
        self._inputs = torch.zeros(batch, conv_channels(spec), taps, dtype=dtype, device=self.device)
        self._seen = torch.zeros((), dtype=torch.int64, device=self.device)
        self._last: Tensor | None = None  # (b,) the newest token's position, where callers gave some

    @property
    def state(self) -> LinearState:
        """The state after the last token."""
        return LinearState(self._sums, self._norms)

    @property
    def inputs(self) -> Tensor:
        """(b, channels, taps - 1): the last inputs of the convolution, zeros where there were none."""
        return self._inputs

    def advance(self, state: LinearState, inputs: Tensor, count: int, *, positions: Tensor | None = None) -> None:
        """`count` tokens later: the new state and the convolution's last inputs."""
        self._sums = state.sums.to(self.dtype)
        self._norms = None if state.norms is None else state.norms.to(self.dtype)
        self._inputs = inputs.to(self.dtype).contiguous()  # not a view of a whole prompt
        if positions is not None:
            self._last = positions[:, -1].expand(self.batch)
        elif self._last is not None:
            self._last = self._last + count
        self._seen.add_(count)

    @property
    def length(self) -> int:
        """Tokens seen (reads the device)."""
        return int(self._seen)

    @property
    def tokens(self) -> Tensor:
        """Tokens seen, as a tensor: a compiled step has one graph."""
        return self._seen.clone()

    @property
    def resident_bytes(self) -> int:
        """Bytes of the state and of the convolution's inputs."""
        return sum(x.nbytes for x in self._tensors().values())

    def positions(self) -> Tensor:
        """(b or 1, 0): no token is held."""
        return torch.empty(1, 0, dtype=torch.int64, device=self.device)

    def _last_position(self) -> Tensor | None:
        return self._last

    def crop(self, tokens: int) -> None:
        """All tokens or none; anything between is gone."""
        kept, length = self._remaining(tokens), self.length
        if kept not in (0, length):
            raise SpecError(f"a running state of {length} tokens cannot be taken back to {kept}: crop to {length} or 0")
        if not kept:
            self.reset()

    def reset(self) -> None:
        """Empty again."""
        self._sums, self._inputs = torch.zeros_like(self._sums), torch.zeros_like(self._inputs)
        self._norms = None if self._norms is None else torch.zeros_like(self._norms)
        self._last = None
        self._seen.zero_()

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this; see `Cache`."""
        last = {} if self._last is None else {"_last": self._last}
        return {"tokens": self.length}, {name.removeprefix("_"): x for name, x in (self._tensors() | last).items()}

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `saved`."""
        self.reset()
        for name, tensor in tensors.items():
            setattr(self, f"_{name}", tensor.clone())
        self._seen.fill_(told["tokens"])

    def _select(self, index: Tensor) -> None:
        for name, tensor in self._tensors().items():
            setattr(self, name, tensor.index_select(0, index))
        self._last = None if self._last is None else self._last.index_select(0, index)

    def _tensors(self) -> dict[str, Tensor]:
        named = {"_sums": self._sums, "_norms": self._norms, "_inputs": self._inputs}
        return {name: x for name, x in named.items() if x is not None}
