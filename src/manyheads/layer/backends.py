"""Which backend computes a call of attention, and why: one order, and one place for what would be quicker.

    selected = select(call)            # its name, and why not a quicker one

The layer, the drop-in for torch's module, the door into transformers' models and `manyheads explain` all ask here; `dispatch`
computes it.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from manyheads.cost.formulas import absorption_crossover_queries
from manyheads.kernels import backend as kernel
from manyheads.kernels.keys import MOST_QUERIES
from manyheads.ops import sdpa, softmax, tiled
from manyheads.ops.answer import Answer, No, Yes
from manyheads.ops.call import AttentionCall, Backend
from manyheads.ops.deferred import DeferredTensor
from manyheads.ops.latent import latents_of
from manyheads.quoting import shown
from manyheads.spec import Latent

__all__ = [
    "BACKENDS", "NAMES", "Selected", "is_absorption_profitable", "is_profitable", "select",
]  # fmt: skip

BACKENDS: Mapping[str, Backend] = {"kernel": kernel, "plain": softmax, "tiled": tiled, "sdpa": sdpa}
NAMES = ("auto", *BACKENDS)

_LARGEST_PLAIN_ELEMENTS = 2**22  # logits of all sequences and heads: 16 MiB of float32
# Where torch's function takes as long as the kernel: products of queries, keys and what each pair reads. Below, the 40 us
# that starting the kernel takes weigh more than what it saves (benchmarks/decode_threshold.py, one thread, caches from memory).
_LEAST_WORK: dict[torch.dtype, tuple[int, int]] = {  # (query heads share keys, each has its own), one new query
    torch.float32: (2**20, 2**20),
    torch.bfloat16: (2**22, 2**24),  # torch reads unshared bfloat16 at the same speed
    torch.float16: (2**17, 2**18),
}
_LEAST_WORK_OF_SEVERAL = 2**17
_LEAST_KEYS_FLOAT32 = 512
_LEAST_KEYS_OF_SEVERAL = 128
_LEAST_KEYS_OF_MANY = 256


class Selected:
    """Which backend computes a call, and why not a quicker one: put together when somebody reads it, as of a `No`."""

    def __init__(self, name: str, *reasons: str | Answer) -> None:
        self.name, self._reasons = name, reasons

    @property
    def reason(self) -> str:
        """Why not a quicker backend; "" where there is none."""
        return "; ".join(each.reason if isinstance(each, No) else str(each) for each in self._reasons)

    def __repr__(self) -> str:
        return f"Selected({shown(self.name)}, {shown(self.reason)})"


def select(call: AttentionCall, backend: str = "auto") -> Selected:
    """The backend that is asked for where it supports the call. Else, and for "auto": the decode kernel where it is the
    quickest, else torch's function where it computes this, else the kernel after all, else written out while that is small,
    else in tiles. In a graph, nothing depends on lengths.
    """
    if backend != "auto" and BACKENDS[backend].supports(call):
        return Selected(backend, "it was asked for")
    in_graph = torch.compiler.is_compiling()
    by_kernel = kernel.supports(call) if in_graph else is_profitable(call)
    if by_kernel:
        return Selected("kernel")
    by_torch = sdpa.supports(call)
    if by_torch:
        return Selected("sdpa", by_kernel)
    if in_graph:
        return Selected("plain", by_kernel, by_torch)
    by_kernel = kernel.supports(call)
    if by_kernel:
        return Selected("kernel")
    b, h, t, _ = call.q.shape
    name = "plain" if b * h * t * call.k.shape[2] <= _LARGEST_PLAIN_ELEMENTS else "tiled"
    return Selected(name, by_kernel, by_torch)


def is_profitable(call: AttentionCall) -> Answer:
    """Whether the kernel computes this call and nothing else is quicker, or No(reason)."""
    q, k, v, latents = call.q, call.k, call.v, latents_of(call.k, call.v)
    if latents is not None and k.shape[2] <= q.shape[2]:
        return No("nothing is cached yet: the heads are made once, and read once")
    if latents is not None and latents.is_absorbed_by_torch_too:
        q, k, v = latents.absorbed_shapes(q)
    # else the alternative is to make keys and values first, at every step
    answer = Yes() if isinstance(k, DeferredTensor) else _is_long_enough(q, k, v)
    return kernel.supports(call) if answer else answer


def _is_long_enough(q: Tensor, k: Tensor, v: Tensor) -> Answer:
    """Whether there is so much to read that the kernel is quicker than torch's function, or No(reason)."""
    (b, h, t, width), (kv_heads, s) = q.shape, k.shape[1:3]
    work = b * h * t * s * (width + v.shape[3])
    if t == 1:
        if k.dtype == torch.float32 and s < _LEAST_KEYS_FLOAT32:
            return No("{} keys, and in float32 the kernel is quicker from {} keys on", s, _LEAST_KEYS_FLOAT32)
        least = _LEAST_WORK.get(k.dtype, (0, 0))[h == kv_heads]
    elif t > MOST_QUERIES:
        least = 0  # not for the kernel at all, as `supports` says
    else:
        keys = _LEAST_KEYS_OF_SEVERAL if t <= 8 else _LEAST_KEYS_OF_MANY
        if s < keys:
            return No("{} keys, and for {} new queries the kernel is quicker from {} keys on", s, t, keys)
        if h == kv_heads and k.dtype == torch.float32 and width >= 128:
            return No(
                "{} new queries over unshared float32 keys of {} elements are products torch is quicker at", t, width
            )
        least = _LEAST_WORK_OF_SEVERAL
    if work < least:
        return No("{} keys: {:,} products, and the kernel is quicker from {:,} on", s, work, least)
    return Yes()


def is_absorption_profitable(kv: Latent, queries: int, keys: int) -> bool:
    """Whether scoring the latents themselves takes fewer MACs than expanding `keys` of them, for `queries` queries, where
    torch computes both.

    t · s · H(2c - n - v) < (s - t) · c · H(n + v): for a long cache, fewer queries than the crossover [facts: F41].
    """
    if 2 * kv.rank <= kv.nope_dim + kv.v_head_dim:
        return True
    crossover = absorption_crossover_queries(kv.nope_dim, kv.v_head_dim, kv.rank)
    return bool(queries * keys < crossover * (keys - queries))
