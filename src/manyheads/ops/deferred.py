"""Tensors that stand for something else: what a cache or absorbed latent attention hands to the attention function.

transformers gives the attention function no cache, only the keys and values that the cache returned. A `DeferredTensor` has their
shape and dtype and holds what they would be made of, which the kernel reads as it is. Whatever else is done with it is done
to the tensor itself, made on the spot: right for any model, but slow, and said so once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from manyheads.ops.hadamard import hadamard_rotate

__all__ = ["DeferredTensor", "StoredTensor", "materialized", "warn_once"]

_warned: set[str] = set()


class DeferredTensor(torch.Tensor):
    """A tensor that is made when something other than ours asks for its elements."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    what = "a tensor"

    def materialized(self) -> Tensor:
        """The tensor itself."""
        raise NotImplementedError

    def with_dtype(self, dtype: torch.dtype) -> DeferredTensor:
        """The same, to look like a tensor of another dtype."""
        raise NotImplementedError

    def __repr__(self, **_: object) -> str:
        return f"{type(self).__name__}({tuple(self.shape)}, {self.dtype}: {self.what})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _warn(cls.what, func)
        return func(*tree_map(materialized, args), **tree_map(materialized, kwargs or {}))


class StoredTensor(DeferredTensor):
    """Keys or values (b, k, s, d) that are kept in another format: `numbers`, and for int8 `scales` (b, k, s).

    `is_rotated`: keys that were Hadamard-rotated before they were rounded (`ops.hadamard`); they meet rotated queries.
    """

    what = "a cache in a format of its own"
    numbers: Tensor
    scales: Tensor | None
    is_rotated: bool

    @staticmethod
    def __new__(
        cls: type, numbers: Tensor, scales: Tensor | None, dtype: torch.dtype, *, is_rotated: bool = False
    ) -> StoredTensor:
        """`dtype`: what it is to look like."""
        made: Any = torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=dtype, device=numbers.device)
        made.numbers, made.scales, made.is_rotated = numbers, scales, is_rotated
        return made

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        """What torch.compile takes it apart into, so that a graph can hold one."""
        return ["numbers"] + ["scales"] * (self.scales is not None), (self.dtype, self.is_rotated)

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, Tensor], told: Any, size: Any, stride: Any) -> StoredTensor:
        """The opposite of `__tensor_flatten__`."""
        return StoredTensor(parts["numbers"], parts.get("scales"), told[0], is_rotated=told[1])

    def materialized(self) -> Tensor:
        """numbers · scales, rotated back, in the dtype that it looks like."""
        return _unpacked(self.numbers, self.scales, self.dtype, is_rotated=self.is_rotated)

    def with_dtype(self, dtype: torch.dtype) -> StoredTensor:
        """The same numbers, of another dtype."""
        return StoredTensor(self.numbers, self.scales, dtype, is_rotated=self.is_rotated)


def materialized(x: Any) -> Any:
    """The tensor that `x` stands for; anything but a `DeferredTensor` as it is."""
    if isinstance(x, StoredTensor):  # not by its method, which torch.compile would take for an operation of tensors
        return _unpacked(x.numbers, x.scales, x.dtype, is_rotated=x.is_rotated)
    return x.materialized() if isinstance(x, DeferredTensor) else x


def _unpacked(numbers: Tensor, scales: Tensor | None, dtype: torch.dtype, *, is_rotated: bool) -> Tensor:
    if scales is None:
        return numbers.to(dtype)
    compute = torch.promote_types(dtype, torch.float32)
    wide = numbers.to(compute) * scales[..., None].to(compute)
    return (hadamard_rotate(wide) if is_rotated else wide).to(dtype)


def warn_once(text: str) -> None:
    """A warning, once in the life of the process."""
    if text not in _warned:
        _warned.add(text)
        warnings.warn(text, stacklevel=3)


def _warn(what: str, func: Callable[..., Any]) -> None:
    """Once for each kind of tensor and operation."""
    warn_once(
        f"manyheads: {what} was met by {func}, which is no attention of ours: it is given values dequantized on the spot, "
        'as right as ever and slower; attn_implementation="manyheads" lets the kernel read them as they are'
    )
