"""Decode attention on torch tensors: what the kernels support, and the call.

    y_r = sum_n softmax_n(cap(scale · q_r k_n) + bias_rn, low_r <= n < high_r) v_n

for the 1 to 16 new queries of each sequence over a cache in fp32, bf16, fp16 or int8 (a scale a token and head). Sums are
in fp32 whatever the cache is stored in.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.kernels import lanes, team
from manyheads.kernels.decode import Scratch, kernel
from manyheads.kernels.keys import MOST_QUERIES, Keys
from manyheads.kernels.request import COUNTER_BYTES, REQUEST
from manyheads.ops.answer import Answer, No, Yes

__all__ = ["LARGEST_HEAD", "MOST_QUERIES", "Keys", "decode", "supports"]

LARGEST_HEAD = 1024
_KINDS = {
    torch.float32: lanes.FP32,
    torch.bfloat16: lanes.BF16,
    torch.float16: lanes.FP16,
    torch.int8: lanes.INT8,
}
# Enough keys that starting a task is nothing beside reading them.
_LEAST_KEYS_A_TASK = 256
_LINE_BYTES = 64


def supports(q: Tensor, k: Tensor, v: Tensor) -> Answer:
    """Whether `decode` can take these tensors, or No(reason)."""
    fits = q.dim() == k.dim() == v.dim() == 4 and k.shape[:3] == v.shape[:3]
    if not fits or (k.shape[0], k.shape[3]) != (q.shape[0], q.shape[3]):
        return No(f"shapes that do not fit: queries {tuple(q.shape)}, keys {tuple(k.shape)}, values {tuple(v.shape)}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        return No(f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key/value heads")
    if any(x.device.type != "cpu" for x in (q, k, v)):
        return No(f"the kernels run on a CPU, these tensors are on {q.device}")
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return No("the kernels have no backward pass")
    if k.dtype not in _KINDS or v.dtype != k.dtype:
        return No(f"keys and values must both be float32, bfloat16, float16 or int8; found {k.dtype} and {v.dtype}")
    if q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return No(f"queries must be float32, bfloat16 or float16; found {q.dtype}")
    if not 1 <= q.shape[2] <= MOST_QUERIES:
        return No(f"the kernels take 1 to {MOST_QUERIES} new queries, found {q.shape[2]}")
    if max(k.shape[3], v.shape[3]) > LARGEST_HEAD:
        return No(f"heads of at most {LARGEST_HEAD} elements, found {k.shape[3]} and {v.shape[3]}")
    if 0 in q.shape or 0 in k.shape or 0 in v.shape:
        return No("there is nothing to read")
    for name, x in (("keys", k), ("values", v)):
        if x.stride(3) != 1 and x.shape[3] > 1:
            return No(f"the elements of a head must lie side by side; the {name} have stride {x.stride(3)}")
        if x.dtype == torch.bfloat16 and x.shape[3] % 2:
            return No(f"bfloat16 heads of an even size, found {x.shape[3]}")
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
    slopes, positions ALiBi: -slopes[h] · |positions[b, t] - n|
    sinks             (h,) one extra logit a head in the denominator
    k_scale, v_scale  (b, k, s) of an int8 cache: key n is k_scale[n] · k[n]
    threads           0 for all; 1 runs on the calling thread alone

    Raises SpecError with the reason of `supports`.
    """
    answer = supports(q, k, v)
    if isinstance(answer, No):
        raise SpecError(f"decode attention: {answer.reason}")
    _check_beside(q, k, keys, bias, slopes, sinks, k_scale, v_scale)
    kind, size, out_size = _KINDS[k.dtype], q.shape[3], v.shape[3]
    threads = threads or team.default_threads()
    out = torch.empty((*q.shape[:3], out_size))
    inputs = _Inputs(
        _floats(q), k, v, keys.low.contiguous(), keys.high.contiguous(), _bias(bias, (*q.shape[:3], k.shape[2])),
        _flat(slopes), _positions(positions, q), _flat(sinks), _wide(k_scale), _wide(v_scale), out,
    )  # fmt: skip
    entry = kernel(kind, size, out_size)
    request, tasks = _request(inputs, Scratch(kind, size, out_size, inputs.rows), threads, scale, softcap or 0.0)
    team.run(entry.address, request.ctypes.data, min(threads, tasks))
    return out.to(q.dtype)


@dataclass(frozen=True, eq=False)
class _Inputs:
    """Tensors as the kernel reads them; they must live until it has."""

    q: Tensor
    k: Tensor
    v: Tensor
    low: Tensor
    high: Tensor
    bias: Tensor | None
    slopes: Tensor | None
    positions: Tensor | None
    sinks: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None
    out: Tensor

    @property
    def rows(self) -> int:
        """Rows of a task: the query heads of a group times the new queries."""
        return self.q.shape[1] // self.k.shape[1] * self.q.shape[2]


def _request(x: _Inputs, scratch: Scratch, threads: int, scale: float, softcap: float) -> tuple[np.ndarray, int]:
    """The REQUEST of a call, and its number of tasks."""
    (b, h, t, _), (kv_heads, s) = x.q.shape, x.k.shape[1:3]
    splits = _splits(b * kv_heads, s, threads)
    tasks = b * kv_heads * splits
    parts = tasks if splits > 1 else threads
    sizes = (
        COUNTER_BYTES,
        threads * scratch.thread,
        *(parts * size for size in (scratch.mixed, scratch.top, scratch.total)),
    )
    counters, working, mixed, top, total = _workspace(sizes)
    request = np.array(
        (
            counters, tasks, splits, kv_heads, h // kv_heads, t, s,
            *_place(x.q, 3), *_place(x.k, 3), *_place(x.v, 3), *_elements(x.k_scale, 3), *_elements(x.v_scale, 3),
            x.low.data_ptr(), x.high.data_ptr(), *_elements(x.bias, 4),
            *(0 if y is None else y.data_ptr() for y in (x.slopes, x.positions, x.sinks)),
            working, scratch.thread, scratch.queries, scratch.queries + scratch.tile,
            scratch.queries + scratch.tile + scratch.packed, mixed, top, total, x.out.data_ptr(), scale, softcap,
        ),
        REQUEST,
    )  # fmt: skip
    return request, tasks


_kept = threading.local()


def _workspace(sizes: tuple[int, ...]) -> list[int]:
    """Addresses of stretches of these many bytes, each at a line's start, in memory that the calling thread keeps."""
    whole = sum(sizes) + _LINE_BYTES
    memory: np.ndarray | None = getattr(_kept, "memory", None)
    if memory is None or memory.nbytes < whole:
        memory = _kept.memory = np.empty(whole, np.uint8)
    start = -(-memory.ctypes.data // _LINE_BYTES) * _LINE_BYTES
    memory[: COUNTER_BYTES + _LINE_BYTES] = 0
    return [start + sum(sizes[:i]) for i in range(len(sizes))]


def _place(x: Tensor, axes: int) -> tuple[int, ...]:
    """Address and strides in bytes."""
    width = x.element_size()
    return (x.data_ptr(), *(stride * width for stride in x.stride()[:axes]))


def _elements(x: Tensor | None, axes: int) -> tuple[int, ...]:
    """Address and strides in elements; zeros for nothing."""
    return (0,) * (axes + 1) if x is None else (x.data_ptr(), *x.stride())


def _floats(x: Tensor) -> Tensor:
    """In float32, with the elements of a head side by side."""
    x = x.detach().float()
    return x if x.stride(3) == 1 else x.contiguous()


def _check_beside(
    q: Tensor, k: Tensor, keys: Keys, bias: Tensor | None, slopes: Tensor | None, sinks: Tensor | None,
    k_scale: Tensor | None, v_scale: Tensor | None,
) -> None:  # fmt: skip
    """What comes beside q, k and v is read by address: a shape that does not fit would read past its end."""
    (b, h, t, _), (kv_heads, s) = q.shape, k.shape[1:3]
    wanted: list[tuple[str, Tensor | None, tuple[int, ...]]] = [
        ("low", keys.low, (b, t)), ("high", keys.high, (b, t)), ("slopes", slopes, (h,)), ("sinks", sinks, (h,)),
    ]  # fmt: skip
    if k.dtype == torch.int8:
        if k_scale is None or v_scale is None:
            raise SpecError("decode attention: an int8 cache needs k_scale and v_scale, one number a token and head")
        wanted += [("k_scale", k_scale, (b, kv_heads, s)), ("v_scale", v_scale, (b, kv_heads, s))]
    for name, x, shape in wanted:
        if x is not None and tuple(x.shape) != shape:
            raise SpecError(f"decode attention: {name} must be {shape}, found {tuple(x.shape)}")
    sizes = () if bias is None else zip(reversed(bias.shape), (s, t, h, b), strict=False)
    if bias is not None and (bias.dim() > 4 or any(size not in (1, whole) for size, whole in sizes)):
        raise SpecError(f"decode attention: bias {tuple(bias.shape)} does not broadcast to {(b, h, t, s)}")


def _splits(heads: int, keys: int, threads: int) -> int:
    """Stretches of keys for each sequence and KV head: none where the heads alone keep every thread equally busy."""
    if threads == 1 or (heads >= 4 * threads or heads % threads == 0):
        return 1
    return max(1, min(2 * threads, keys // _LEAST_KEYS_A_TASK))


def _positions(positions: Tensor | None, q: Tensor) -> Tensor | None:
    return None if positions is None else positions.to(torch.int64).expand(q.shape[0], q.shape[2]).contiguous()


def _flat(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().float().contiguous()


def _wide(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().float()


def _bias(bias: Tensor | None, shape: tuple[int, int, int, int]) -> Tensor | None:
    """In float32, with a stride of 0 where it broadcasts to (b, h, t, s)."""
    return None if bias is None else bias.detach().float().expand(shape)
