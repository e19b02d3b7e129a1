"""Keys and values of tokens, in buffers that grow in place: where every cache keeps them, a layer's and transformers'.

A buffer that is full moves to one with room for half as many tokens again, or for a sixteenth where only the last tokens
are kept; for 64 at least. So a token is copied a few times in all, and not at every step. What is read are views. They stay
right after more tokens have come, since those are written behind them; who takes tokens back or puts one in another's
place writes over what older views show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from manyheads.errors import BackendError
from manyheads.ops.deferred import StoredTensor, materialized
from manyheads.ops.hadamard import hadamard_rotate

__all__ = ["KeysValues", "TokenBuffers", "quantised"]

_LEAST_ROOM = 64
_LARGEST = 127
_SCALE = torch.float16


class TokenBuffers:
    """Tensors (batch, heads, tokens, ...) with as many tokens each.

    keep              as many of the last tokens `trim` leaves; None: all
    copies_in_graphs  whether a graph of torch.compile appends by a copy, so that none depends on how much room there is
    """

    def __init__(self, keep: int | None = None, *, copies_in_graphs: bool = False) -> None:
        self.keep, self.copies_in_graphs = keep, copies_in_graphs
        self._buffers: list[Tensor] = []
        self._start = self._stop = 0
        self._read_only = False

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
        self._buffers, self._start, self._read_only = list(tensors), 0, True
        self._stop = tensors[0].shape[2] if self._buffers else 0

    def append(self, new: Sequence[Tensor]) -> None:
        """Take in more tokens. Raises BackendError where they do not go with what is held."""
        if not self._buffers:
            self._buffers = [x.new_empty((*x.shape[:2], 0, *x.shape[3:])) for x in new]
        _check(self._buffers, new)
        if self._learns(new) or (self.copies_in_graphs and torch.compiler.is_compiling()):
            self.replace([torch.cat(pair, 2) for pair in zip(self.view(), new, strict=True)])
            return
        count = new[0].shape[2]
        if self._stop + count > self._buffers[0].shape[2] or self._unfit():
            self._move(count)
        learning = torch.is_grad_enabled()
        for buffer, x in zip(self._buffers, new, strict=True):
            # .data: what autograd has saved of older tokens does not change, so it need not hear of this
            (buffer.data if learning else buffer).narrow(2, self._stop, count).copy_(x)
        self._stop += count

    def put(self, slots: Tensor, new: Sequence[Tensor]) -> None:
        """One token of each sequence, (batch, heads, 1, ...), in the place of the one in slot (batch,)."""
        learns = self._learns(new)
        if not learns and self._unfit():
            self._move(0)
        held = self.view()
        indices = [slots.view(-1, *[1] * (x.dim() - 1)).expand_as(x) for x in new]
        if learns:
            self.replace([old.scatter(2, at, x) for old, at, x in zip(held, indices, new, strict=True)])
            return
        for old, at, x in zip(held, indices, new, strict=True):
            old.scatter_(2, at, x)

    def gather(self, columns: Tensor) -> None:
        """Of each sequence only the tokens in `columns` (batch, n)."""
        held = self.view()
        indices = [columns.view(columns.shape[0], 1, -1, *[1] * (x.dim() - 3)) for x in held]
        self.replace([
            x.gather(2, at.expand(-1, x.shape[1], -1, *x.shape[3:])) for x, at in zip(held, indices, strict=True)
        ])  # fmt: skip

    def pad(self, tokens: int) -> None:
        """`tokens` slots in all, zeros behind what is held."""
        held = self.view()
        self.replace([
            torch.cat((x, x.new_zeros((*x.shape[:2], tokens - x.shape[2], *x.shape[3:]))), 2) for x in held
        ])  # fmt: skip

    def trim(self) -> None:
        """Forget all but the last `keep` tokens; where those are the smaller part of the buffers, move them to others."""
        if self.keep is None:
            return
        self._start = max(self._start, self._stop - self.keep)
        roomy = self._start > self.keep + _LEAST_ROOM
        if roomy and not (torch.compiler.is_compiling() or torch.is_grad_enabled()):
            self._move(0)

    def drop_last(self, tokens: int) -> None:
        """Take back the last `tokens`."""
        self._stop = max(self._start, self._stop - tokens)
        # autograd may have saved what would be written over
        self._read_only = self._read_only or torch.is_grad_enabled()

    def select(self, rows: Tensor) -> None:
        """Sequence i becomes sequence rows[i]; booleans say which ones stay."""
        if not self._buffers:
            return
        rows = rows.to(self._buffers[0].device)
        if rows.dtype == torch.bool:
            rows = rows.nonzero()[:, 0]
        batch = self._buffers[0].shape[0]
        if rows.shape[0] == batch and torch.equal(rows, torch.arange(batch, device=rows.device)):
            return
        if self._learns(()):
            self.replace([x.index_select(0, rows) for x in self.view()])
            return
        selected = []
        for buffer in self._buffers:
            made = buffer.new_empty((rows.shape[0], *buffer.shape[1:]))
            held = slice(self._start, self._stop)
            for to, origin in enumerate(rows.tolist()):
                made[to, :, held].copy_(buffer.data[origin, :, held])
            selected.append(made)
        self._buffers, self._read_only = selected, False

    def _learns(self, new: Sequence[Tensor]) -> bool:
        return torch.is_grad_enabled() and any(x.requires_grad for x in (*self._buffers, *new))

    def _unfit(self) -> bool:
        """Whether the buffers are not to be written to: seen elsewhere, or made where there are no gradients at all."""
        if self._read_only or torch.compiler.is_compiling():
            return self._read_only
        return self._buffers[0].is_inference() and not torch.is_inference_mode_enabled()

    def _move(self, count: int) -> None:
        """The tokens held, at the beginning of buffers with room for `count` more and some."""
        held = self.view()
        total = self.tokens + count
        spare = total // 2
        if self.keep is not None:
            spare = min(spare, max(self.keep - total, 0) + self.keep // 16)
        self._stop -= self._start
        self._start, self._read_only = 0, False
        size = total + max(_LEAST_ROOM, spare)
        self._buffers = [x.new_empty((*x.shape[:2], size, *x.shape[3:])) for x in held]
        for buffer, old in zip(self._buffers, held, strict=True):
            buffer[:, :, : self._stop].copy_(old)


class KeysValues:
    """Keys (b, k, s, q) and values (b, k, s, v) of the tokens of one layer, in one of several formats.

    stored   torch.int8: keys Hadamard-rotated, a 16-bit scale a token and head; another dtype: cast to it; None: as they come
    keep     as many of the last tokens are held between updates; None: all

    One head with keys and values of different widths is a latent and its rotary key. They lie side by side, unless in int8,
    so that the kernel reads them as one row. Rounding has no gradient: none flows into what int8 keeps.
    """

    def __init__(
        self, stored: torch.dtype | None = None, *, keep: int | None = None, copies_in_graphs: bool = False
    ) -> None:
        self.stored = stored
        self.buffers = TokenBuffers(keep, copies_in_graphs=copies_in_graphs)
        self.seen = 0
        self._dtypes: tuple[torch.dtype, torch.dtype] | None = None
        self._key_width: int | None = None  # where keys and values lie side by side
        self._key_parts = 1  # tensors of the buffers that are of the keys: numbers, and scales

    @property
    def begun(self) -> bool:
        """Whether it is known what is to be kept."""
        return self._dtypes is not None

    @property
    def tokens(self) -> int:
        """Tokens held; `seen` counts those that were let go, too."""
        return self.buffers.tokens

    @property
    def resident_bytes(self) -> int:
        """Bytes of the tokens held; room for more is not counted."""
        return sum(x.numel() * x.element_size() for x in self.buffers.view())

    def begin(self, keys: Tensor, values: Tensor) -> None:
        """Learn from the first tokens, or none of them, what is to be kept."""
        side_by_side = keys.shape[1] == 1 and keys.shape[3] != values.shape[3] and self.stored != torch.int8
        self._key_width = keys.shape[3] if side_by_side else None
        self._key_parts = 2 if self.stored == torch.int8 and keys.shape[3] else 1
        self._dtypes = (keys.dtype, values.dtype)
        self.buffers.append(self._encoded(keys[:, :, :0], values[:, :, :0]))

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Take in t new tokens, keys (b, k, t, q) and values (b, k, t, v)."""
        keys, values = materialized(keys), materialized(values)
        if not self.begun:
            self.begin(keys, values)
        self.buffers.append(self._encoded(keys, values))
        self.seen += keys.shape[2]

    def read(self, last: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values held, or the `last` of them: views, or `ops.deferred.StoredTensor` where they are kept in another format."""
        assert self._dtypes is not None
        parts = self.buffers.view(last)
        if self._key_width is not None:
            keys, values = (parts[0][..., : self._key_width],), (parts[0][..., self._key_width :],)
        else:
            keys, values = parts[: self._key_parts], parts[self._key_parts :]  # type: ignore[assignment]
        return _outward(keys, self._dtypes[0], is_rotated=len(keys) == 2), _outward(values, self._dtypes[1])

    def update(self, keys: Tensor, values: Tensor, *, trim: bool = True) -> tuple[Tensor, Tensor]:
        """Take in t new tokens; returns them behind the `keep` before them, then, to `trim`, lets go of what is too old."""
        self.append(keys, values)
        keep = self.buffers.keep
        read = self.read(None if keep is None else keep + keys.shape[2])
        if trim:
            self.buffers.trim()
        return read

    def put(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """One new token of each sequence in slot (b,), in the place of the token there."""
        self.buffers.put(slots, self._encoded(keys, values))
        self.seen += 1

    def set(self, keys: Tensor | None = None, values: Tensor | None = None) -> None:
        """One of the two is replaced from outside, of as many tokens; the other stays. Raises BackendError elsewhere."""
        given = materialized(keys if keys is not None else values)
        if not self.begun:
            raise BackendError("keys and values are set one by one, and this cache holds none yet: use update")
        if given.shape[2] != self.tokens:
            raise BackendError(
                f"keys and values are set one by one, of as many tokens as are held: {self.tokens}, found {given.shape[2]}; "
                "use crop or update"
            )
        parts = list(self.buffers.view())
        if self._key_width is not None:
            parts, self._key_width = [parts[0][..., : self._key_width], parts[0][..., self._key_width :]], None
        if keys is not None:
            parts[: self._key_parts] = self._rounded(self._rotated(given))
        else:
            parts[self._key_parts :] = self._rounded(given)
        self.buffers.replace(parts)

    def crop(self, tokens: int) -> None:
        """Take back the last `tokens`."""
        self.buffers.drop_last(tokens)
        self.seen -= tokens

    def missing_after(self, crop: int, window: int) -> int:
        """How many tokens the next query would look for in vain, in a window of so many keys, if `crop` were taken back."""
        return max(min(self.seen - crop, window - 1) - (self.tokens - crop), 0)

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this: words and numbers, and tensors."""
        if not self.begun:
            return {"tokens": 0}, {}
        assert self._dtypes is not None
        told = {
            "tokens": self.seen, "key_width": self._key_width,
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in self._dtypes],
        }  # fmt: skip
        parts = self.buffers.view()
        names = [f"keys{i}" for i in range(self._key_parts)] + [f"values{i}" for i in range(len(parts))]
        return told, dict(zip(names, parts, strict=False))

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `saved`. The tensors are read and never written to: they may be mapped from a file."""
        if not told["tokens"]:
            return
        names = [name for name in ("keys0", "keys1", "values0", "values1") if name in tensors]
        first, second = (getattr(torch, name) for name in told["dtypes"])
        self._dtypes, self._key_width, self.seen = (first, second), told["key_width"], told["tokens"]
        self._key_parts = sum(name.startswith("keys") for name in names)
        self.buffers.replace([tensors[name] for name in names])

    def _encoded(self, keys: Tensor, values: Tensor) -> list[Tensor]:
        if self._key_width is not None:
            return self._rounded(torch.cat((keys, values), 3))
        if self.stored == torch.int8 and keys.shape == values.shape and keys.dtype == values.dtype and keys.shape[3]:
            heads = keys.shape[1]  # both at once: of one new token, the number of steps is what takes time
            rotated = self._rotated(keys)
            numbers, scales = self._rounded(torch.cat((rotated, values.to(rotated.dtype)), 1))
            return [numbers[:, :heads], scales[:, :heads], numbers[:, heads:], scales[:, heads:]]
        return [*self._rounded(self._rotated(keys)), *self._rounded(values)]

    def _rotated(self, keys: Tensor) -> Tensor:
        return hadamard_rotate(keys.detach()) if self.stored == torch.int8 else keys

    def _rounded(self, x: Tensor) -> list[Tensor]:
        """(numbers, scales) of int8, else one tensor."""
        if self.stored != torch.int8:
            return [x if self.stored is None else x.to(self.stored)]
        return list(quantised(x.detach())) if x.shape[3] else [x.detach().to(torch.int8)]


def _outward(parts: tuple[Tensor, ...], dtype: torch.dtype, *, is_rotated: bool = False) -> Tensor:
    if len(parts) == 1 and parts[0].dtype == dtype:
        return parts[0]
    return StoredTensor(parts[0], parts[1] if len(parts) > 1 else None, dtype, is_rotated=is_rotated)


def quantised(x: Tensor) -> tuple[Tensor, Tensor]:
    """Int8 n = round(x / s) like x (..., d) and s = max|x| / 127 (...), over the last axis, s rounded to 16 bits first."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scales = (wide.abs().amax(-1) / _LARGEST).to(_SCALE)
    # a row too small for 16 bits has the scale 0, and is zero
    divisor = torch.where(scales == 0, 1.0, scales.to(wide.dtype))
    return (wide / divisor[..., None]).round().clamp(-_LARGEST, _LARGEST).to(torch.int8), scales


def _check(held: Sequence[Tensor], new: Sequence[Tensor]) -> None:
    for old, x in zip(held, new, strict=True):
        was, comes = old.shape, x.shape
        if was[:2] != comes[:2] or was[3:] != comes[3:] or old.dtype != x.dtype:
            raise BackendError(
                f"the cache holds (batch, heads, tokens, width) {tuple(old.shape)} in {old.dtype}, new tokens come as "
                f"{tuple(x.shape)} in {x.dtype}; valid: the same but for the tokens"
            )
