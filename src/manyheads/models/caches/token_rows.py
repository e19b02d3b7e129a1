"""Tokens of one cache layer, in buffers that grow in place: what DynamicCache copies at every step is copied here a few
times in all.

A buffer has room for half as many tokens again as it held when it was made, and at least 64 more. What is read are views of it.
They stay right after more tokens have come, since those are written behind them; whoever takes tokens back (`drop_last`)
writes over what older views show.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from manyheads.errors import BackendError

__all__ = ["TokenRows"]

_LEAST_ROOM = 64


class TokenRows:
    """Tensors (batch, heads, tokens, ...) with as many tokens each; `keep`: as many of the last are kept by `trim`."""

    def __init__(self, keep: int | None = None) -> None:
        self.keep = keep
        self._buffers: list[Tensor] = []
        self._start = self._stop = 0
        self._fresh = False

    @property
    def tokens(self) -> int:
        """Tokens held."""
        return self._stop - self._start

    def view(self, last: int | None = None) -> tuple[Tensor, ...]:
        """The tensors, or their `last` tokens."""
        start = self._start if last is None else max(self._start, self._stop - last)
        return tuple([buffer.narrow(2, start, self._stop - start) for buffer in self._buffers])

    def replace(self, tensors: Sequence[Tensor]) -> None:
        """These instead of what is held; they are not written to, the next token is copied with them."""
        self._buffers, self._start = list(tensors), 0
        self._stop = tensors[0].shape[2] if self._buffers else 0

    def append(self, new: Sequence[Tensor]) -> None:
        """Take in more tokens. Raises BackendError where they do not go with what is held."""
        if not self._buffers:
            self._buffers = [x.new_empty((*x.shape[:2], 0, *x.shape[3:])) for x in new]
        _check(self._buffers, new)
        learning = torch.is_grad_enabled()
        if learning and any(x.requires_grad for x in (*self._buffers, *new)):
            self.replace([torch.cat(pair, 2) for pair in zip(self.view(), new, strict=True)])
            return
        if (
            torch.compiler.is_compiling()
        ):  # no graph may depend on how much room there is: they grow as transformers' own
            self.replace([torch.cat(pair, 2) for pair in zip(self.view(), new, strict=True)])
            return
        count = new[0].shape[2]
        if self._stop + count > self._buffers[0].shape[2] or self._unfit():
            self._move(count)
        for buffer, x in zip(self._buffers, new, strict=True):
            # .data: what autograd has saved of older tokens does not change, so it need not hear of this
            (buffer.data if learning else buffer).narrow(2, self._stop, count).copy_(x)
        self._stop += count

    def _unfit(self) -> bool:
        """Whether the buffers are not to be written to: made where there are no gradients at all, or seen elsewhere."""
        return self._fresh or (self._buffers[0].is_inference() and not torch.is_inference_mode_enabled())

    def _move(self, count: int) -> None:
        """The tokens held, at the beginning of larger buffers."""
        held = self.view()
        total = self.tokens + count
        rolls = self.keep is not None and total > self.keep
        room = max(_LEAST_ROOM, (self.keep or 0) // 2 if rolls else total // 2)
        if rolls and count > 1:
            room = 0  # all but the last tokens of a prompt are dropped at once
        self._stop -= self._start
        self._start, self._fresh = 0, False
        self._buffers = [x.new_empty((*x.shape[:2], total + room, *x.shape[3:])) for x in held]
        for buffer, old in zip(self._buffers, held, strict=True):
            buffer[:, :, : self._stop].copy_(old)

    def trim(self) -> None:
        """Forget all but the last `keep` tokens."""
        if self.keep is not None:
            self._start = max(self._start, self._stop - self.keep)

    def drop_last(self, tokens: int) -> None:
        """Take back the last `tokens`."""
        self._stop = max(self._start, self._stop - tokens)
        self._fresh = self._fresh or torch.is_grad_enabled()  # autograd may have saved what would be written over

    def select(self, rows: Tensor) -> None:
        """Sequence i becomes sequence rows[i]."""
        if not self._buffers:
            return
        rows = rows.to(self._buffers[0].device)
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        batch = self._buffers[0].shape[0]
        if rows.shape[0] == batch and torch.equal(rows, torch.arange(batch, device=rows.device)):
            return
        if torch.is_grad_enabled() and any(buffer.requires_grad for buffer in self._buffers):
            self.replace([x.index_select(0, rows) for x in self.view()])
            return
        chosen = []
        for buffer in self._buffers:
            made = buffer.new_empty((rows.shape[0], *buffer.shape[1:]))
            held = slice(self._start, self._stop)
            for to, origin in enumerate(rows.tolist()):
                made[to, :, held].copy_(buffer.data[origin, :, held])
            chosen.append(made)
        self._buffers, self._fresh = chosen, False


def _check(held: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    for old, x in zip(held, new, strict=True):
        was, comes = old.shape, x.shape
        if was[:2] != comes[:2] or was[3:] != comes[3:] or old.dtype != x.dtype:
            raise BackendError(
                f"the cache holds (batch, heads, tokens, width) {tuple(old.shape)} in {old.dtype}, new tokens come as "
                f"{tuple(x.shape)} in {x.dtype}; valid: the same but for the tokens"
            )
