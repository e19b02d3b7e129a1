"""Layers for transformers' caches that append in place, in any of several formats. Imports transformers.

    full        every token
    windowed    the last W - 1 before the new ones, as transformers' own layer keeps them

Beside the state of a linear layer, they stand in `hf_hybrid`.

What `update` returns are views of the buffers where the format is the model's own, and `manyheads.ops.deferred.Packed` where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from manyheads.errors import BackendError
from manyheads.layer.caches.quantised import quantised
from manyheads.models.caches.token_rows import TokenRows
from manyheads.ops.arguments import check_window
from manyheads.ops.deferred import Packed, widened
from manyheads.ops.hadamard import hadamard_rotate

__all__ = ["FullLayer", "WindowLayer"]


class FullLayer(CacheLayerMixin):
    """Every token, in place. `stored`: what keys and values are kept in; None for what they come in."""

    is_sliding = False
    is_croppable = True
    is_compileable = False

    def __init__(self, *, stored: torch.dtype | None = None, **_: Any) -> None:
        self.stored = stored
        self._keep: int | None = None
        self._key_rows, self._value_rows = TokenRows(), TokenRows()
        self._key_width: int | None = None  # of keys and values that lie side by side in one row
        self._dtypes: tuple[torch.dtype, torch.dtype] | None = None
        self.is_initialized = False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Learn from the first tokens what is to be kept."""
        self._key_rows = TokenRows(self._keep)
        # One head with keys and values of different widths is a latent and its rotary key: side by side, so that the
        # kernel reads them as one row.
        joint = key_states.shape[1] == 1 and key_states.shape[3] != value_states.shape[3] and self.stored != torch.int8
        self._key_width = key_states.shape[3] if joint else None
        self._value_rows = self._key_rows if joint else TokenRows(self._keep)
        self._dtypes = (key_states.dtype, value_states.dtype)
        self.device = key_states.device
        self.is_initialized = True
        self._write(key_states[:, :, :0], value_states[:, :, :0])

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Take in new tokens; returns all there is to attend to."""
        self._append(key_states, value_states)
        return self._read()

    def _append(self, keys: Tensor, values: Tensor) -> None:
        if not self.is_initialized:
            self.lazy_initialization(keys, values)
        self._write(widened(keys), widened(values))

    def _write(self, keys: Tensor, values: Tensor) -> None:
        if self._key_width is not None:
            self._key_rows.append(self._encoded(torch.cat((keys, values), 3)))
            return
        if self.stored == torch.int8 and keys.shape == values.shape and keys.dtype == values.dtype:
            heads = keys.shape[1]  # both at once: of one new token, the number of steps is what takes time
            both = self._encoded(torch.cat((hadamard_rotate(keys), values.to(torch.float32)), 1))
            self._key_rows.append([x[:, :heads] for x in both])
            self._value_rows.append([x[:, heads:] for x in both])
            return
        self._key_rows.append(self._encoded(self._turned(keys)))
        self._value_rows.append(self._encoded(values))

    def _turned(self, keys: Tensor) -> Tensor:
        return hadamard_rotate(keys.detach()) if self.stored == torch.int8 else keys

    def _encoded(self, x: Tensor) -> list[Tensor]:
        if self.stored == torch.int8:
            numbers, scales = quantised(x.detach())
            return [numbers, scales[..., 0]]
        return [x if self.stored is None else x.to(self.stored)]

    def _read(self, last: int | None = None) -> tuple[Tensor, Tensor]:
        if self._key_width is None:
            return self._outward(self._key_rows.view(last), 0), self._outward(self._value_rows.view(last), 1)
        (rows,) = self._key_rows.view(last)
        width = self._key_width
        return self._outward((rows[..., :width],), 0), self._outward((rows[..., width:],), 1)

    def _outward(self, tensors: tuple[Tensor, ...], which: int) -> Tensor:
        assert self._dtypes is not None
        if len(tensors) == 1 and tensors[0].dtype == self._dtypes[which]:
            return tensors[0]
        scales = tensors[1] if len(tensors) > 1 else None
        return Packed(tensors[0], scales, self._dtypes[which], is_rotated=scales is not None and which == 0)

    @property
    def keys(self) -> Tensor | None:
        """(b, k, s, q), or None before the first token."""
        return self._read()[0] if self.is_initialized else None

    @keys.setter
    def keys(self, keys: Tensor | None) -> None:
        self._set(keys, None)

    @property
    def values(self) -> Tensor | None:
        """(b, k, s, v), or None before the first token."""
        return self._read()[1] if self.is_initialized else None

    @values.setter
    def values(self, values: Tensor | None) -> None:
        self._set(None, values)

    def _set(self, keys: Tensor | None, values: Tensor | None) -> None:
        """One of the two is replaced from outside; the other stays."""
        given = keys if keys is not None else values
        if given is None:
            return
        if not self.is_initialized:
            raise BackendError("keys and values are set one by one, and this layer holds none yet: use update")
        if self._key_width is not None:
            (rows,) = self._key_rows.view()
            self._key_rows, self._value_rows = TokenRows(self._keep), TokenRows(self._keep)
            self._key_rows.replace([rows[..., : self._key_width]])
            self._value_rows.replace([rows[..., self._key_width :]])
            self._key_width = None
        rows_of, wide = self._key_rows if keys is not None else self._value_rows, widened(given)
        rows_of.replace(self._encoded(self._turned(wide) if keys is not None else wide))

    def kept_state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this layer: words and numbers, and tensors."""
        if not self.is_initialized:
            return {"tokens": 0}, {}
        assert self._dtypes is not None
        told = {
            "tokens": self.get_seq_length(), "key_width": self._key_width,
            "dtypes": [str(dtype).removeprefix("torch.") for dtype in self._dtypes],
        }  # fmt: skip
        rows = (
            {"keys": self._key_rows}
            if self._key_width is not None
            else {"keys": self._key_rows, "values": self._value_rows}
        )
        return told, {f"{name}{i}": x for name, each in rows.items() for i, x in enumerate(each.view())}

    def restore(self, told: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        """The opposite of `kept_state`."""
        if not told["tokens"]:
            return
        self._key_rows = TokenRows(self._keep)
        self._key_width = told["key_width"]
        self._value_rows = self._key_rows if self._key_width is not None else TokenRows(self._keep)
        for name, rows in (("keys", self._key_rows), ("values", self._value_rows)):
            tensors = [kept[f"{name}{i}"] for i in range(2) if f"{name}{i}" in kept]
            if tensors:
                rows.replace(tensors)
        first, second = (getattr(torch, name) for name in told["dtypes"])
        self._dtypes, self.device, self.is_initialized = (first, second), kept["keys0"].device, True

    def get_seq_length(self) -> int:
        """Tokens seen."""
        return self._key_rows.tokens if self.is_initialized else 0

    def get_max_length(self) -> int:
        """-1: there is no limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that the next `query_length` queries are given, position of the first)."""
        return self.get_seq_length() + query_length, 0

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raise BackendError for tokens that cannot be taken back; where nothing is held (shared keys), nothing is taken."""
        if tokens_to_remove > 0:
            raise BackendError(f"crop takes 0 or less, as many tokens are taken back; found {tokens_to_remove}")
        if self.is_initialized and -tokens_to_remove > self.get_seq_length():
            raise BackendError(
                f"crop was asked to take back {-tokens_to_remove} tokens of {self.get_seq_length()}; valid: "
                f"{-self.get_seq_length()} to 0"
            )

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -tokens_to_remove tokens."""
        self.check_crop(tokens_to_remove)
        if tokens_to_remove and self.is_initialized:
            self._each(lambda rows: rows.drop_last(-tokens_to_remove))

    def reset(self) -> None:
        """Empty, as if new."""
        self._key_rows, self._value_rows = TokenRows(self._keep), TokenRows(self._keep)
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes sequence beam_idx[i]."""
        self._each(lambda rows: rows.select(beam_idx))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, side by side."""
        if self.is_initialized:
            batch = self._key_rows.view()[0].shape[0]
            self._each(lambda rows: rows.select(torch.arange(batch).repeat_interleave(repeats)))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these sequences, by number or as booleans."""
        self._each(lambda rows: rows.select(torch.as_tensor(indices)))

    def offload(self) -> None:
        """To the CPU, where it may be already."""
        if self.is_initialized and self.device.type != "cpu":
            self._to(torch.device("cpu"))

    def prefetch(self) -> None:
        """Back to where it was."""
        if self.is_initialized and self.device.type != "cpu":
            self._to(self.device)

    def _to(self, device: torch.device) -> None:
        self._each(lambda rows: rows.replace([x.to(device, non_blocking=True) for x in rows.view()]))

    def _each(self, do: Any) -> None:
        do(self._key_rows)
        if self._value_rows is not self._key_rows:
            do(self._value_rows)


class WindowLayer(FullLayer):
    """The last W - 1 tokens, and with them the new ones while they are read; `sliding_window` is W."""

    is_sliding = True

    def __init__(self, sliding_window: int, *, stored: torch.dtype | None = None, **_: Any) -> None:
        super().__init__(stored=stored)
        check_window(sliding_window)
        self.sliding_window = int(sliding_window)
        self._sliding_window_tensor = torch.tensor(self.sliding_window)  # what DynamicCache's iterator gives away
        self._keep = self.sliding_window - 1
        self.cumulative_length = 0
        self.record_past = False

    def activate_past_recording(self) -> None:
        """From now on keep everything until `crop` says what stays."""
        self.record_past = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Take in new tokens; returns them behind the W - 1 before them."""
        self._append(key_states, value_states)
        count = key_states.shape[2]
        self.cumulative_length += count
        read = self._read(self.sliding_window - 1 + count)
        if not self.record_past:
            self._each(TokenRows.trim)
        return read

    def restore(self, told: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
        """The opposite of `kept_state`."""
        super().restore(told, kept)
        self.cumulative_length = told["tokens"]

    def get_seq_length(self) -> int:
        """Tokens seen, whether or not they are still held."""
        return self.cumulative_length

    def get_max_length(self) -> int:
        """W."""
        return self.sliding_window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that the next `query_length` queries are given, position of the first)."""
        past = min(self.cumulative_length, self.sliding_window - 1)
        return past + query_length, self.cumulative_length - past

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raise BackendError for tokens that cannot be taken back, those included behind which too few are left."""
        super().check_crop(tokens_to_remove)
        held, seen = self._key_rows.tokens, self.cumulative_length
        needed = min(seen + tokens_to_remove, self.sliding_window - 1)
        if self.is_initialized and held + tokens_to_remove < needed:
            raise BackendError(
                f"a window of {self.sliding_window} holds the last {held} of {seen} tokens: without the last "
                f"{-tokens_to_remove} the next query would see {needed}; call activate_past_recording before they come"
            )

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -tokens_to_remove tokens, then forget what is out of sight."""
        self.check_crop(tokens_to_remove)
        if not self.is_initialized:
            return
        self._each(lambda rows: rows.drop_last(-tokens_to_remove))
        self._each(TokenRows.trim)
        self.cumulative_length += tokens_to_remove

    def reset(self) -> None:
        """Empty, as if new."""
        super().reset()
        self.cumulative_length = 0
