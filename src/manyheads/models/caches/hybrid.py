"""Layers for transformers' caches with the state of a linear layer in them: what to do with the state, which stays transformers'
own, and keys and values of ours beside it. Imports transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import LinearAttentionLayer

from manyheads.errors import BackendError
from manyheads.models.caches.layers import FullLayer, WindowLayer

__all__ = ["LAYERS", "STOCK", "HybridLayer", "HybridWindowLayer", "check_linear_crop"]


def linear_state(layer: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a file needs to restore the state of a linear layer, one of transformers' own."""
    told = {"taps": list(layer.conv_kernel_size.values()), "begun": list(layer.has_previous_state.values())}
    states = (("conv", layer.conv_states), ("recurrent", layer.recurrent_states))
    return told, {f"{name}{i}": x for name, each in states for i, x in each.items() if x is not None}


def restore_linear(layer: Any, told: Mapping[str, Any], kept: Mapping[str, Tensor]) -> None:
    """The opposite of `linear_state`; the states are written to in place, so they are copies."""
    layer.conv_kernel_size = dict(enumerate(told["taps"]))
    layer.has_previous_state = dict(enumerate(told["begun"]))
    for i in range(layer.number_of_states):
        conv, recurrent = (kept.get(f"{name}{i}") for name in ("conv", "recurrent"))
        if conv is not None:
            layer.conv_states[i], layer.is_conv_states_initialized[i] = conv.clone(), True
            layer.device, layer.dtype = conv.device, conv.dtype
        if recurrent is not None:
            layer.recurrent_states[i], layer.is_recurrent_states_initialized[i] = recurrent.clone(), True


def check_linear_crop(layer: Any, tokens_to_remove: int) -> None:
    """Raise BackendError where the state of a linear layer, one of transformers' own, cannot be taken back so far: transformers
    takes back what a convolution remembers, and leaves the running sum as it is."""
    if not tokens_to_remove:
        return
    if any(layer.is_recurrent_states_initialized.values()):
        raise BackendError(
            f"a linear layer keeps one running state, which cannot be taken back by {-tokens_to_remove} tokens; valid: 0, or a "
            "copy of the cache from before they came"
        )
    if any(layer.is_conv_states_initialized.values()) and not layer.record_past:
        raise BackendError(
            f"a convolution holds its last inputs alone, which cannot be taken back by {-tokens_to_remove} tokens; call "
            "activate_past_recording before they come"
        )


class _Hybrid(LinearAttentionLayer):
    """The state of a linear layer beside keys and values; the second base says which of them are kept."""

    _attention: type[FullLayer] = FullLayer

    def lazy_initialization(self, *states: Tensor, **linear: Any) -> None:
        """As transformers' own hybrid layers: keys and values come by place, states by name."""
        if states:
            self._attention.lazy_initialization(self, *states)  # type: ignore[arg-type]
        else:
            LinearAttentionLayer.lazy_initialization(self, **linear)

    def _both(self, name: str, *arguments: Any) -> None:
        for base in (LinearAttentionLayer, self._attention):
            getattr(base, name)(self, *arguments)

    def saved(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a file needs to restore both."""
        (told, kept), (linear, states) = self._attention.saved(self), linear_state(self)  # type: ignore[arg-type]
        return {**told, **linear}, {**kept, **states}

    def restore(self, told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """The opposite of `saved`."""
        self._attention.restore(self, told, tensors)  # type: ignore[arg-type]
        restore_linear(self, told, tensors)

    def reset(self) -> None:
        """Both empty."""
        self._both("reset")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Both reordered."""
        self._both("reorder_cache", beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only these sequences of both, by number or as booleans."""
        rows = torch.as_tensor(indices)
        self.reorder_cache(rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every sequence of both `repeats` times, side by side."""
        states = (*self.conv_states.values(), *self.recurrent_states.values(), self._attention.keys.fget(self))  # type: ignore[attr-defined]
        batch = next((x.shape[0] for x in states if x is not None), 0)
        self.reorder_cache(torch.arange(batch).repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        """Both taken back."""
        self.check_crop(tokens_to_remove)
        self._both("crop", tokens_to_remove)

    def check_crop(self, tokens_to_remove: int) -> None:
        """Raise BackendError for tokens that one of the two cannot take back."""
        self._attention.check_crop(self, tokens_to_remove)  # type: ignore[arg-type]
        check_linear_crop(self, tokens_to_remove)

    def offload(self) -> None:
        """Both to the CPU."""
        self._both("offload")

    def prefetch(self) -> None:
        """Both back."""
        self._both("prefetch")


class HybridLayer(_Hybrid, FullLayer):
    """A linear layer's state and every token of an attention beside it."""

    is_compileable = False

    def __init__(self, number_of_states: int = 1, *, stored: torch.dtype | None = None, **_: Any) -> None:
        FullLayer.__init__(self, stored=stored)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


class HybridWindowLayer(_Hybrid, WindowLayer):
    """A linear layer's state and a window."""

    is_compileable = False
    _attention = WindowLayer

    def __init__(
        self, sliding_window: int, number_of_states: int = 1, *, stored: torch.dtype | None = None, **_: Any
    ) -> None:
        WindowLayer.__init__(self, sliding_window, stored=stored)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)


LAYERS: dict[str, type] = {
    "full_attention": FullLayer,
    "sliding_attention": WindowLayer,
    "chunked_attention": WindowLayer,
    "hybrid": HybridLayer,
    "hybrid_sliding": HybridWindowLayer,
}
"""Ours by transformers' names for kinds of layers; the others (linear states, indexed keys) stay transformers' own."""

STOCK: dict[str, tuple[Any, Any]] = {
    "LinearAttentionLayer": (linear_state, restore_linear),
    "DummyLayer": (lambda _: ({}, {}), lambda *_: None),
}
"""How those that stay transformers' own and can be saved are saved and restored, by the names of their classes."""
