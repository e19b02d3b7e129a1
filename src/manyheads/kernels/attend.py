"""Decode attention on torch tensors: what the kernels support, and the call.

    y_r = sum_n softmax_n(cap(scale · q_r k_n) + bias_rn, low_r <= n < high_r) v_n

for the 1 to 16 new queries of each sequence over a cache in fp32, bf16, fp16 or int8 (a scale a token and head). Sums are
in fp32 whatever the cache is stored in.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from manyheads.errors import SpecError
from manyheads.kernels import lanes, pool
from manyheads.kernels.decode import kernel, merge
from manyheads.kernels.keys import MOST_QUERIES, Keys
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
_NOTHING: np.ndarray = np.empty(0, np.float32)
_NO_SCALES: np.ndarray = np.empty((0, 0, 0), np.float32)


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
    (b, h, t, size), (kv_heads, s), out_size = q.shape, k.shape[1:3], v.shape[3]
    _check_beside(q, k, keys, bias, slopes, sinks, k_scale, v_scale)
    kind, group = _KINDS[k.dtype], h // kv_heads
    rows = group * t
    threads = threads or pool.default_threads()
    splits = _splits(b * kv_heads, s, threads)
    tasks = b * kv_heads * splits
    partial = np.empty((tasks, rows, -(-out_size // 32) * 32), np.float32)
    top, total = np.empty((tasks, rows), np.float32), np.empty((tasks, rows), np.float32)
    queries = _queries(q, kv_heads, kind, scale)
    biases, bias_strides = _bias(bias, (b, h, t, s))
    places = np.zeros((b, t), np.int64) if positions is None else _array(positions.expand(b, t), torch.int64)
    arguments = (
        tasks, rows, kv_heads, splits, queries, k.data_ptr(), _strides(k), v.data_ptr(), _strides(v),
        _scales(k_scale), _scales(v_scale), _array(keys.low.clamp(0, s), torch.int64), _array(keys.high.clamp(0, s), torch.int64),
        biases, bias_strides, _flat(slopes), places, np.float32(softcap or 0.0), t, partial, top, total,
    )  # fmt: skip
    compiled = kernel(kind, size, out_size)
    pool.run(lambda first, step: compiled(first, step, *arguments), min(threads, tasks))
    out = np.empty((b, kv_heads, rows, out_size), np.float32)
    merge(kind, out_size)(partial, top, total, splits, kv_heads, _flat(sinks), t, out)
    return torch.from_numpy(out).view(b, h, t, out_size).to(q.dtype)


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


def _queries(q: Tensor, kv_heads: int, kind: int, scale: float) -> np.ndarray:
    """(b, k, g·t, padded): scaled, in fp32, in the order in which the kernel widens keys."""
    b, h, t, size = q.shape
    rows = q.detach().float().mul(scale).reshape(b, kv_heads, (h // kv_heads) * t, size)
    step = lanes.STEP[kind]
    if size % step:
        rows = torch.nn.functional.pad(rows, (0, -size % step))
    if kind == lanes.BF16:
        rows = rows.unflatten(-1, (-1, 16, 2)).mT.flatten(-3)
    return rows.contiguous().numpy()


def _strides(x: Tensor) -> np.ndarray:
    return np.array([stride * x.element_size() for stride in x.stride()[:3]], np.int64)


def _array(x: Tensor, dtype: torch.dtype) -> np.ndarray:
    return x.detach().to(device="cpu", dtype=dtype).contiguous().numpy()


def _flat(x: Tensor | None) -> np.ndarray:
    return _NOTHING if x is None else _array(x, torch.float32).reshape(-1)


def _scales(x: Tensor | None) -> np.ndarray:
    return _NO_SCALES if x is None else _array(x, torch.float32)


def _bias(bias: Tensor | None, shape: tuple[int, int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """The bias's own elements and the stride of each axis of (b, h, t, s), 0 where it broadcasts."""
    if bias is None:
        return _NOTHING, np.zeros(4, np.int64)
    flat = bias.detach().float().contiguous()
    wide = flat.expand(shape)
    return flat.view(-1).numpy(), np.array(wide.stride(), np.int64)
