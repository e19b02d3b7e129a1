"""Layers for transformers' caches over the cache core of `layer.caches`: CacheLayerMixin's methods, and nothing else.

    full        every token
    windowed    the last W - 1 before the new ones, as transformers' own layer keeps them

Those with the state of a linear layer beside them stand in `hybrid`. transformers' masks count columns, so these windows do
too. What `update` returns are views of the buffers where the format is the model's own, and `ops.deferred.StoredTensor` where it is
not. Imports transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from manyheads.errors import BackendError
from manyheads.layer.caches.storage import KeysValues
from manyheads.ops.arguments import check_window

__all__ = ["FullLayer", "WindowLayer"]


class FullLayer(CacheLayerMixin):
    """Every token, in place. `stored`: what keys and values are kept in; None for what they come in."""

    is_sliding = False
    is_croppable = True
    is_compileable = False
    record_past = False
    _keep: int | None = None

    def __init__(self, *, stored: torch.dtype | None = None, **_: Any) -> None:
        self.stored = stored
        self._begin()

    def _begin(self) -> None:
        self.core = KeysValues(self.stored, keep=self._keep, copies_in_graphs=True)

    @property
    def is_initialized(self) -> bool:  # type: ignore[override]
        """Whether any tokens have come."""
        return self.core.begun

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Learn from the first tokens what is to be kept."""
        self.device = key_states.device
        self.core.begin(key_states, value_states)

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Take in new tokens; returns all there is to attend to: of a window, those before them that it shows."""
        if not self.core.begun:
            self.lazy_initialization(key_states, value_states)
        return self.core.update(key_states, value_states, trim=not self.record_past)

    @property
    def keys(self) -> Tensor | None:
        """(b, k, s, q), or None before the first token."""
        return self.core.read()[0] if self.core.begun else None

    @keys.setter
    def keys(self, keys: Tensor | None) -> None:
        if keys is not None:
            self.core.set(keys=keys)

    @property
    def values(self) -> Tensor | None:
        """(b, k, s, v), or None before the first token."""
        return self.core.read()[1] if self.core.begun else None

    @values.setter
    def values(self, values: Tensor | None) -> None:
        if values is not None:
            self.core.set(values=values)

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore this layer: words and numbers, and tensors."""
        return self.core.saved()

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `saved`."""
        self.core.restore(told, tensors)
        if self.core.begun:
            self.device = tensors["keys0"].device

    def get_seq_length(self) -> int:
        """Tokens seen, whether or not they are still held."""
        return self.core.seen

    def get_max_length(self) -> int:
        """-1: there is no limit."""
        return -1

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """(keys that the next `query_length` queries are given, position of the first)."""
        past = self.core.seen if self._keep is None else min(self.core.seen, self._keep)
        return past + query_length, self.core.seen - past

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raise BackendError for tokens that cannot be taken back; where nothing is held (shared keys), nothing is taken."""
        seen = self.core.seen
        if tokens_to_remove > 0:
            raise BackendError(f"crop takes 0 or less, as many tokens are taken back; found {tokens_to_remove}")
        if self.core.begun and -tokens_to_remove > seen:
            raise BackendError(f"crop was asked to take back {-tokens_to_remove} tokens of {seen}; valid: {-seen} to 0")

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the last -tokens_to_remove tokens, then let go of what is out of sight."""
        self.check_crop(tokens_to_remove)
        if self.core.begun:
            if tokens_to_remove:
                self.core.crop(-tokens_to_remove)
            self.core.buffers.trim()

    def reset(self) -> None:
        """Empty, as if new."""
        self._begin()

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Sequence i becomes sequence beam_idx[i]."""
        self.core.buffers.select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence `repeats` times, side by side."""
        if self.core.begun:
            batch = self.core.buffers.view()[0].shape[0]
            self.core.buffers.select(torch.arange(batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these sequences, by number or as booleans."""
        self.core.buffers.select(torch.as_tensor(indices))

    def offload(self) -> None:
        """To the CPU, where it may be already."""
        self._to(torch.device("cpu"))

    def prefetch(self) -> None:
        """Back to where it was."""
        if self.core.begun:
            self._to(self.device)

    def _to(self, device: torch.device) -> None:
        if self.core.begun and self.device.type != "cpu":
            self.core.buffers.replace([x.to(device, non_blocking=True) for x in self.core.buffers.view()])


class WindowLayer(FullLayer):
    """The last W - 1 tokens, and with them the new ones while they are read; `sliding_window` is W."""

    is_sliding = True

    def __init__(self, sliding_window: int, *, stored: torch.dtype | None = None, **_: Any) -> None:
        check_window(sliding_window)
        self.sliding_window = int(sliding_window)
        self._sliding_window_tensor = torch.tensor(self.sliding_window)  # what DynamicCache's iterator gives away
        self._keep = self.sliding_window - 1
        super().__init__(stored=stored)

    @property
    def cumulative_length(self) -> int:
        """Tokens seen, by transformers' name."""
        return self.core.seen

    def activate_past_recording(self) -> None:
        """From now on keep everything until `crop` says what stays."""
        self.record_past = True

    def get_max_length(self) -> int:
        """W."""
        return self.sliding_window

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raise BackendError for tokens that cannot be taken back, those included behind which too few are left."""
        super().check_crop(tokens_to_remove)
        if self.core.begun and self.core.missing_after(-tokens_to_remove, self.sliding_window):
            seen = self.core.seen
            raise BackendError(
                f"a window of {self.sliding_window} holds the last {self.core.tokens} of {seen} tokens: without the last "
                f"{-tokens_to_remove} the next query would see {min(seen + tokens_to_remove, self.sliding_window - 1)}; "
                "call activate_past_recording before they come"
            )
