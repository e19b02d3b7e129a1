"""What every form of softmax attention is asked: checked once at the door, with the names and numbers in the error."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops import arguments
from manyheads.ops.bias import Additive
from manyheads.ops.masks import dense
from manyheads.ops.predicates import Everything, Grid, Visible, grid

__all__ = ["Request", "as_autocast", "group", "in_full", "pairs", "ranked", "request", "shapes", "ungroup", "wide"]


@dataclass(frozen=True, eq=False)
class Request:
    """The arguments of one call beside q, k, v: nothing is left to work out."""

    scale: float
    visible: Visible
    bias: Tensor | Additive | None
    softcap: float | None
    sinks: Tensor | None
    dropout: float
    offset: int | Tensor


def wide(dtype: torch.dtype) -> torch.dtype:
    """What softmax, norms and angles are computed in: float64 stays float64, everything else becomes float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def in_full(x: Tensor) -> AbstractContextManager[object]:
    """No autocast inside: it would take products to 16 bits and leave a backward that no longer fits its forward."""
    kind = x.device.type
    on = torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
    return torch.autocast(kind, enabled=False) if on else nullcontext()


def as_autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """In the type of autocast where that is on, to which torch's own attention casts what it is given; else as they are.

    float64 stays float64, as there. What leaves a product is in that type already and what leaves a rotation or a norm is not.
    """
    kind = tensors[0].device.type
    if not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
        return tensors
    dtype = torch.get_autocast_dtype(kind)
    return tuple(x if x.dtype == torch.float64 else x.to(dtype) for x in tensors)


def group(x: Tensor, kv_heads: int) -> Tensor:
    """(b, h, t, d) -> (b, k, g·t, d): the query heads of one key/value head side by side; head h goes to h // g."""
    b, h, t, d = x.shape
    return x.reshape(b, kv_heads, (h // kv_heads) * t, d)


def ungroup(x: Tensor, heads: int) -> Tensor:
    """(b, k, g·t, d) -> (b, h, t, d): the inverse of `group`."""
    b, k, rows, d = x.shape
    return x.reshape(b, heads, rows * k // heads, d)


def ranked(tensor: Tensor) -> Tensor:
    """A view with four axes, right-aligned against (batch, heads, queries, keys)."""
    return tensor[(None,) * (4 - tensor.dim())]


def request(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    visible: Visible | Tensor | None,
    bias: Tensor | Additive | None,
    softcap: float | None,
    sinks: Tensor | None,
    dropout: float,
    offset: int | Tensor | None,
) -> Request:
    """Check one call of attention; a SpecError names what does not fit. q (b,h,t,q), k (b,k,s,q), v (b,k,s,v)."""
    _check_tensors(q, k, v)
    (b, h, t, _), s = q.shape, k.shape[2]
    seen = Everything() if visible is None else dense(visible) if isinstance(visible, Tensor) else visible
    seen.check(batch=b, heads=h, queries=t, keys=s)
    if isinstance(bias, Additive):
        bias.check(heads=h)
    else:
        arguments.check_bias(bias, (b, h, t, s))
    arguments.check_scale(scale)
    arguments.check_softcap(softcap)
    arguments.check_sinks(sinks, heads=h)
    arguments.check_dropout(dropout)
    if isinstance(offset, Tensor) and (tuple(offset.shape) not in ((), (1,), (b,)) or offset.is_floating_point()):
        raise SpecError(
            f"offset must be an integer, or one a sequence, ({b},); found {offset.dtype} {tuple(offset.shape)}"
        )
    return Request(scale, seen, bias, softcap, sinks, dropout, s - t if offset is None else offset)


def pairs(asked: Request, q: Tensor, *, rows: slice, columns: slice) -> Grid:
    """The index tensors of a block of this call."""
    return grid(batch=q.shape[0], heads=q.shape[1], rows=rows, columns=columns, offset=asked.offset, device=q.device)


def _check_tensors(q: Tensor, k: Tensor, v: Tensor) -> None:
    if not q.dim() == k.dim() == v.dim() == 4:
        raise SpecError(f"q, k and v must each be (batch, heads, tokens, dim); found {shapes(q=q, k=k, v=v)}")
    if not q.shape[0] == k.shape[0] == v.shape[0]:
        raise SpecError(f"q, k and v must have the same batch size; found {shapes(q=q, k=k, v=v)}")
    if q.shape[3] != k.shape[3]:
        widths = f"{q.shape[3]} and {k.shape[3]}"
        raise SpecError(f"queries and keys must have the same width; found {widths} in {shapes(q=q, k=k, v=v)}")
    if k.shape[1:3] != v.shape[1:3]:
        raise SpecError(f"keys and values must have the same heads and tokens; found {shapes(q=q, k=k, v=v)}")
    if k.shape[1] < 1 or q.shape[1] % k.shape[1]:
        heads = f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key/value heads"
        raise SpecError(f"{heads}; found {shapes(q=q, k=k, v=v)}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise SpecError(f"q, k and v must share one floating dtype; found {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise SpecError(f"q, k and v must be on one device; found {q.device}, {k.device}, {v.device}")


def shapes(**tensors: Tensor) -> str:
    """Names and shapes for a message, put together where it is raised and not before: while torch.compile traces, a size that
    is written into a text becomes a constant of the graph."""
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
