"""Decode attention on torch tensors: what the kernels support, and the call.

    y_r = sum_n softmax_n(cap(scale · q_r k_n) + bias_rn, low_r <= n < high_r) v_n

for the 1 to 16 new queries of each sequence over a cache in fp32, bf16, fp16 or int8 (a scale a token and head). Sums are
in fp32 whatever the cache is stored in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.kernels import team
from manyheads.kernels.decode import kernel
from manyheads.kernels.keys import MOST_QUERIES, Keys
from manyheads.kernels.kinds import FLOATING, KINDS
from manyheads.kernels.request import Inputs, prepared
from manyheads.kernels.scratch import PACKED_ROWS, scratch
from manyheads.ops import arguments
from manyheads.ops.answer import Answer, No, Yes

__all__ = ["LARGEST_HEAD", "MOST_QUERIES", "Beside", "Keys", "compute", "decode", "supports"]

LARGEST_HEAD = 1024


class Beside(NamedTuple):
    """What acts on the logits and comes as tensors: see `decode`."""

    bias: Tensor | None
    slopes: Tensor | None
    positions: Tensor | None
    sinks: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None


def supports(q: Tensor, k: Tensor, v: Tensor) -> Answer:
    """Whether `decode` can take these tensors, or No(reason)."""
    fits = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    if not fits or (k.shape[0], k.shape[3]) != (q.shape[0], q.shape[3]):
        return No("shapes that do not fit: queries {}, keys {}, values {}", *(tuple(x.shape) for x in (q, k, v)))
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        return No("{} query heads are not a multiple of {} key/value heads", q.shape[1], k.shape[1])
    if not (q.is_cpu and k.is_cpu and v.is_cpu):
        return No("the kernels run on a CPU, these tensors are on {}, {} and {}", q.device, k.device, v.device)
    if not (torch.compiler.is_compiling() or all(arguments.is_readable(x) for x in (q, k, v))):
        return No("the kernels read memory, and a mode or a transform of torch stands before these tensors")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        return No("the kernels have no backward pass")
    if k.dtype not in KINDS or v.dtype != k.dtype:
        return No("keys and values must both be float32, bfloat16, float16 or int8; found {} and {}", k.dtype, v.dtype)
    if q.dtype not in FLOATING:
        return No("queries must be float32, bfloat16 or float16; found {}", q.dtype)
    if not 1 <= q.shape[2] <= MOST_QUERIES:
        return No("the kernels take 1 to {} new queries, found {}", MOST_QUERIES, q.shape[2])
    if max(k.shape[3], v.shape[3]) > LARGEST_HEAD:
        return No("heads of at most {} elements, found {} and {}", LARGEST_HEAD, k.shape[3], v.shape[3])
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        return No("there is nothing to read")
    for name, x in (("keys", k), ("values", v)):
        if x.stride(3) != 1 and x.shape[3] > 1:
            return No("the elements of a head must lie side by side; the {} have stride {}", name, x.stride(3))
        if x.dtype == torch.bfloat16 and x.shape[3] % 2:
            return No("bfloat16 heads of an even size, found {}", x.shape[3])
    return Yes()


def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    *,
    scale: float,
    bias: Tensor | None = None,
    slopes: Tensor | None = None,
    positions: Tensor | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    threads: int = 0,
) -> Tensor:
    """Attention of q (b, h, t, q) over k (b, k, s, q) and v (b, k, s, v): (b, h, t, v) in the dtype of q.

    keys              which keys each query sees; a query that sees none gives zeros
    bias              added after scale and softcap; broadcasts to (b, h, t, s)
    slopes, positions ALiBi: -slopes[h] · |positions[b, t] - n|; positions are integers (t,) or (b, t)
    sinks             (h,) one extra logit a head in the denominator
    k_scale, v_scale  (b, k, s) of an int8 cache, read as they are in float32 or float16: key n is k_scale[n] · k[n]
    threads           0 for all; 1 runs on the calling thread alone

    Raises SpecError with the reason of `supports`, and for what `manyheads.ops.arguments` refuses.
    """
    answer = supports(q, k, v)
    if isinstance(answer, No):
        raise SpecError(f"decode attention: {answer.reason}")
    arguments.check_scale(scale)
    arguments.check_softcap(softcap)
    beside = Beside(bias, slopes, positions, sinks, k_scale, v_scale)
    _check_beside(q, k, keys, beside)
    return compute(q, k, v, keys, beside, scale=scale, softcap=softcap, threads=threads)


def compute(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    keys: Keys,
    beside: Beside,
    *,
    scale: float,
    softcap: float | None,
    threads: int = 0,
) -> Tensor:
    """`decode` (b, h, t, v) of arguments that were checked: the kernel reads them by address. The scales of an int8 cache are
    looked at here, as no `AttentionCall` does it."""
    _check_scales(k, beside)
    kind, (b, h, t, size), out_size = KINDS[k.dtype], q.shape, v.shape[3]
    threads = threads or team.default_threads()
    inputs = Inputs(
        _side_by_side(q.detach().float()), k, v, keys.low.contiguous(), keys.high.contiguous(),
        _bias(beside.bias, (b, h, t, k.shape[2])), _flat(beside.slopes), _positions(beside.positions, q), _flat(beside.sinks),
        _scales(beside.k_scale, beside.v_scale), _scales(beside.v_scale, beside.k_scale), torch.empty((b, h, t, out_size)),
    )  # fmt: skip
    rows = h // k.shape[1] * t
    room = scratch(kind, size, out_size, rows)
    request, tasks = prepared(inputs, room, threads, scale, softcap or 0.0)
    code = kernel(kind, size, out_size, many=rows >= PACKED_ROWS)
    team.run(code.address, request, min(threads, tasks))
    return inputs.out.to(q.dtype)


def _check_beside(q: Tensor, k: Tensor, keys: Keys, beside: Beside) -> None:
    """What comes beside q, k and v is read by address: a shape or type that does not fit would read past its end."""
    b, h, t, _ = q.shape
    for name, x in (("low", keys.low), ("high", keys.high)):
        if tuple(x.shape) != (b, t):
            raise SpecError(f"decode attention: {name} must be {(b, t)}, found {tuple(x.shape)}")
    if keys.low.dtype != torch.int64 or keys.high.dtype != torch.int64:
        raise SpecError(f"decode attention: low and high must be int64, found {keys.low.dtype} and {keys.high.dtype}")
    arguments.check_slopes(beside.slopes, heads=h)
    if beside.slopes is not None:
        _check_positions(beside.positions, b, t)
    arguments.check_sinks(beside.sinks, heads=h)
    arguments.check_bias(beside.bias, (b, h, t, k.shape[2]))


def _check_scales(k: Tensor, beside: Beside) -> None:
    if k.dtype != torch.int8:
        return
    if beside.k_scale is None or beside.v_scale is None:
        raise SpecError("decode attention: an int8 cache needs k_scale and v_scale, one number a token and head")
    for name, x in (("k_scale", beside.k_scale), ("v_scale", beside.v_scale)):
        if tuple(x.shape) != tuple(k.shape[:3]):
            raise SpecError(f"decode attention: {name} must be {tuple(k.shape[:3])}, found {tuple(x.shape)}")


def _check_positions(positions: Tensor | None, batch: int, queries: int) -> None:
    if positions is None:
        raise SpecError("decode attention: slopes need the positions of the queries, (t,) or (b, t)")
    shapes = ((queries,), (1, queries), (batch, queries))
    if positions.is_floating_point() or positions.dtype == torch.bool or tuple(positions.shape) not in shapes:
        found = f"{positions.dtype} {tuple(positions.shape)}"
        raise SpecError(
            f"decode attention: positions must be integers {(queries,)} or {(batch, queries)}; found {found}"
        )


def _side_by_side(q: Tensor) -> Tensor:
    return q if q.stride(3) == 1 else q.contiguous()


def _positions(positions: Tensor | None, q: Tensor) -> Tensor | None:
    return None if positions is None else positions.to(torch.int64).expand(q.shape[0], q.shape[2]).contiguous()


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().float().contiguous()


def _scales(x: Tensor | None, other: Tensor | None) -> Tensor | None:
    """As they are in float16, if the other scales are too, else in float32."""
    if x is None or other is None:
        return None
    return x.detach() if x.dtype == other.dtype == torch.float16 else x.detach().float()


def _bias(bias: Tensor | None, shape: tuple[int, int, int, int]) -> Tensor | None:
    """In float32, with a stride of 0 where it broadcasts to (b, h, t, s)."""
    return None if bias is None else bias.detach().float().expand(shape)
