"""What acts on the logits, and what each of it may be: one check for operators, kernels, the layer and the door.

    scale      a finite number above 0; always given
    softcap    a finite number above 0; None for no cap
    window     an integer of 1 or more, the keys that a query sees, itself included; None for no window
    dropout    a number of 0 or more, below 1 (torch's module takes 1, too: there everything is dropped)
    sinks      (h,) floating, each finite, or -inf for a head without one; None for no sinks
    slopes     (h,) floating, each finite and 0 or more: the sign is in ALiBi's formula; None for no ALiBi
    bias       floating; each finite, or -inf for a pair that is not visible; None for no bias. Of a mask or bias, the axis
               of keys is never broadcast
    positions  integers, or floats of 32 bits or more: 16 bits cannot tell positions apart from 257 (bfloat16) or 2,049
               (float16) on, whatever is computed from them

0, NaN and infinity are never another way to say None. Numbers are looked at in every call. Of tensors, shapes always; what
is in them only where looking is nothing beside the call: on the CPU, up to LARGEST_LOOKED_AT elements, and not while a graph
is traced, a mode of torch's dispatcher is on or a transform of torch.func runs. Beyond that NaN and +inf in a bias give NaN in
every form.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.quoting import shown
from manyheads.spec import check

__all__ = [
    "LARGEST_LOOKED_AT",
    "check_axes",
    "check_bias",
    "check_dropout",
    "check_positions",
    "check_scale",
    "check_shape",
    "check_sinks",
    "check_slopes",
    "check_softcap",
    "check_window",
    "is_readable",
]

LARGEST_LOOKED_AT = 2**12  # a few microseconds


def check_axes(name: str, tensor: Tensor, *, batch: int, heads: int) -> None:
    """Raise a SpecError for a mask or bias (n, t, s) where there are n sequences and n heads: it could be either's.

    Everywhere else three axes have one meaning that fits, or are refused for their shape.
    """
    if tensor.dim() == 3 and tensor.shape[0] == batch == heads != 1:
        raise SpecError(
            f"{name} {tuple(tensor.shape)} can be read two ways, as there are {batch} sequences and {heads} heads: write "
            f"{name}[:, None] for one a sequence, {name}[None] for one a head"
        )


def check_shape(name: str, tensor: Tensor, **axes: int) -> None:
    """Raise a SpecError unless a mask or bias has the sizes of `axes`, right-aligned, or 1 for any of them but the keys.

    One column is never all of them: it is what is left of a mask that spoke of the newest token alone.
    """
    found, wanted = tuple(tensor.shape), tuple(axes.values())
    fits = len(found) <= len(wanted) and all(
        size in (1, need) for size, need in zip(reversed(found), reversed(wanted), strict=False)
    )
    if not fits or found[-1:] != wanted[-1:]:
        raise SpecError(
            f"{name} {found} does not fit ({', '.join(axes)}) {wanted}; valid: these sizes, or 1 for any of them but the "
            "keys, which are all tokens so far where there is a cache"
        )


def check_scale(scale: float) -> None:
    """Raise a SpecError unless `scale` is a finite number above 0."""
    _number("scale", scale)


def check_softcap(softcap: float | None) -> None:
    """Raise a SpecError unless `softcap` is None or a finite number above 0."""
    if softcap is not None:
        _number("softcap", softcap, "; None for no cap")


def check_window(window: int | None) -> None:
    """Raise a SpecError unless `window` is None or an integer of 1 or more."""
    if window is not None:
        check.size("window", window)


def check_dropout(dropout: float, *, all_of_it: bool = False) -> None:
    """Raise a SpecError unless `dropout` lies in [0, 1), or [0, 1] with `all_of_it`."""
    usable = isinstance(dropout, int | float) and not isinstance(dropout, bool)
    if not usable or not (0 <= dropout < 1 or (all_of_it and dropout == 1)):
        raise SpecError(f"dropout must lie in {'[0, 1]' if all_of_it else '[0, 1)'}, found {shown(dropout)}")


def check_sinks(sinks: Tensor | None, *, heads: int) -> None:
    """Raise a SpecError unless `sinks` is None or holds one logit a query head, each finite or -inf."""
    if sinks is None:
        return
    if tuple(sinks.shape) != (heads,) or not sinks.is_floating_point():
        raise SpecError(
            f"sinks must hold one floating logit a query head, ({heads},); found {sinks.dtype} {tuple(sinks.shape)}"
        )
    if _looked_at(sinks) and not float(sinks.detach().amax()) < math.inf:
        raise SpecError(f"sinks must be finite, or -inf for a head without one; found {shown(sinks.tolist())}")


def check_slopes(slopes: Tensor | None, *, heads: int) -> None:
    """Raise a SpecError unless `slopes` is None or holds one number a query head, each finite and 0 or more."""
    if slopes is None:
        return
    if tuple(slopes.shape) != (heads,) or not slopes.is_floating_point():
        raise SpecError(
            f"slopes must hold one floating number a query head, ({heads},); found {slopes.dtype} {tuple(slopes.shape)}"
        )
    if not _looked_at(slopes):
        return
    least, most = slopes.detach().aminmax()
    if not 0 <= float(least) <= float(most) < math.inf:
        raise SpecError(
            f"slopes must be finite and 0 or more, as what is added is -slope · distance; found {shown(slopes.tolist())}"
        )


def check_bias(bias: Tensor | None, shape: tuple[int, int, int, int]) -> None:
    """Raise a SpecError unless `bias` is None or is added to logits of `shape` (batch, heads, queries, keys)."""
    if bias is None:
        return
    if not bias.is_floating_point():
        raise SpecError(f"bias is added to the logits and must be floating, found {bias.dtype}; a mask goes in visible")
    check_axes("bias", bias, batch=shape[0], heads=shape[1])
    batch, heads, queries, keys = shape
    check_shape("bias", bias, batch=batch, heads=heads, queries=queries, keys=keys)
    if _looked_at(bias) and not float(bias.detach().amax()) < math.inf:
        wrong = bias.isnan() | (bias == torch.inf)
        raise SpecError(
            f"bias must be finite, or -inf where a query may not attend; found {bias[wrong][0].item()} in "
            f"{int(wrong.sum())} of {bias.numel()} elements"
        )


def check_positions(positions: Tensor, name: str = "positions") -> None:
    """Raise a SpecError for positions in booleans, complex numbers or 16 bits, which have rounded them already."""
    dtype = positions.dtype
    wide_enough = dtype.itemsize >= torch.float32.itemsize if dtype.is_floating_point else not dtype.is_complex
    if dtype == torch.bool or not wide_enough:
        raise SpecError(f"{name} must be integers, or floats of 32 bits or more; found {dtype}")


def _number(name: str, value: object, none: str = "") -> None:
    """`check.number` by comparisons alone, which torch.compile can guard."""
    usable = isinstance(value, int | float) and not isinstance(value, bool)
    if not usable or not 0 < value < math.inf:  # type: ignore[operator]
        raise SpecError(f"{name} must be a finite number above 0{none}; found {shown(value)}")


def _looked_at(tensor: Tensor) -> bool:
    """Whether there are elements, and reading them costs next to nothing and is possible at all."""
    if torch.compiler.is_compiling() or tensor.device.type != "cpu" or not 0 < tensor.numel() <= LARGEST_LOOKED_AT:
        return False
    return is_readable(tensor)


def is_readable(tensor: Tensor) -> bool:
    """Whether a tensor is plain memory: no mode of torch's dispatcher is on, no transform of torch.func runs over it."""
    traced = torch._C._len_torch_dispatch_stack() or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return type(tensor) in (Tensor, torch.nn.Parameter) and not traced
