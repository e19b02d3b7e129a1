"""The decode kernel as a form of the door: what it takes of a call, and where it is worth it.

    supports(call)   whether the kernel computes this call at all, or No(reason)
    pays(call)       whether it is also the quickest way: one to sixteen new queries over a cache that is long enough

The kernel reads keys and values as a cache layer keeps them (`handed.Packed`) and the latents of MLA without making heads
of them (`latent_seam.Expanded`).
"""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from manyheads.kernels.keys import MOST_QUERIES
from manyheads.models.door import key_bounds as bounds
from manyheads.models.door.absorbed_mla import Expanded, latent_of
from manyheads.models.door.call import Call
from manyheads.models.door.decode_op import attend_last
from manyheads.ops.answer import Answer, No, Yes
from manyheads.ops.bias import Alibi
from manyheads.ops.deferred import Handed, Packed
from manyheads.ops.hadamard import hadamard_rotate

__all__ = ["KERNEL", "KernelForm"]

# Where torch's function takes as long as the kernel: products of queries, keys and what each pair reads. Below, the 40 us
# that starting the kernel takes weigh more than what it saves (benchmarks/decode_threshold.py, one thread, caches from memory).
_LEAST_WORK: dict[torch.dtype, tuple[int, int]] = {  # (query heads share keys, each has its own), one new query
    torch.float32: (2**20, 2**20),
    torch.bfloat16: (2**22, 2**24),  # torch reads unshared bfloat16 at the same speed
    torch.float16: (2**17, 2**18),
}
_NUMBA = importlib.util.find_spec("numba") is not None
_LEAST_WORK_OF_SEVERAL = 2**17
_LEAST_KEYS_FLOAT32 = 512
_LEAST_KEYS_OF_SEVERAL = 128
_LEAST_KEYS_OF_MANY = 256


class KernelForm:
    """`manyheads.kernels.attend.decode` behind the door."""

    name = "kernel"

    def supports(self, call: Call) -> Answer:
        """Whether the kernel computes this call, or No(reason)."""
        if not _NUMBA:
            return No("numba is not installed; pip install 'manyheads[models]' brings it")
        if torch.compiler.is_compiling() and call.q.shape[2] != 1:
            return No("a graph is for any number of new queries, and its operator for one")
        if call.q.shape[2] > MOST_QUERIES:  # said here too, so that who only reads prompts never waits for Numba
            return No("the kernels take 1 to {} new queries, found {}", MOST_QUERIES, call.q.shape[2])
        if call.dropout:
            return No("the kernels have no dropout, {} was asked for", call.dropout)
        if isinstance(call.bias, Tensor) and call.bias.requires_grad and torch.is_grad_enabled():
            return No("the kernels have no backward pass")
        from manyheads.kernels import attend

        latent = latent_of(call)
        if latent is not None:
            reason = latent.refusal()
            if reason:
                return No(reason)
            q, rows, values = latent.shapes(call.q)
            return attend.supports(q, rows, values)
        return attend.supports(call.q, _stored(call.k), _stored(call.v))

    def pays(self, call: Call) -> Answer:
        """Whether the kernel computes this call and nothing else is quicker, or No(reason)."""
        if isinstance(call.k, Expanded) and call.k.shape[2] <= call.q.shape[2]:
            return No("nothing is cached yet: the heads are made once, and read once")
        if not isinstance(call.k, Handed):
            answer = _long_enough(call)
            if not answer:
                return answer
        return self.supports(call)

    def __call__(self, call: Call) -> Tensor:
        """(b, h, t, v) of a call that is supported. In a graph, what is the quickest where it runs."""
        if torch.compiler.is_compiling():
            return attend_last(call)
        latent = latent_of(call)
        if latent is None:
            return self._decoded(call, call.q, call.k, call.v).to(call.q.dtype)
        q, rows, values = latent.absorbed(call.q)
        return latent.expanded_values(self._decoded(call, q, rows, values)).to(call.q.dtype)

    def _decoded(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (b, h, t, _), s = q.shape, k.shape[2]
        seen = bounds.seen_keys(call.visible, batch=b, heads=h, queries=t, keys=s)
        bias, slopes, positions = call.bias, None, None
        if isinstance(bias, Alibi):
            slopes, positions, bias = bias.slopes, torch.arange(s - t, s), None
        if seen.hidden is not None:
            bias = seen.hidden if bias is None else bias + seen.hidden
        if isinstance(k, Packed) and k.is_rotated:
            q = hadamard_rotate(q)
        from manyheads.kernels.attend import decode

        return decode(
            q, _stored(k), _stored(v), seen.keys, scale=call.scale, bias=bias, slopes=slopes, positions=positions,
            softcap=call.softcap, sinks=call.sinks, k_scale=_scales(k), v_scale=_scales(v),
            supported=True,
        )  # fmt: skip


KERNEL = KernelForm()


def _long_enough(call: Call) -> Answer:
    """Whether there is so much to read that the kernel is quicker than torch's function, or No(reason)."""
    b, h, t, q = call.q.shape
    kv_heads, s = call.k.shape[1:3]
    work = b * h * t * s * (q + call.v.shape[3])
    if t == 1:
        if call.k.dtype == torch.float32 and s < _LEAST_KEYS_FLOAT32:
            return No("{} keys, and in float32 the kernel is quicker from {} keys on", s, _LEAST_KEYS_FLOAT32)
        least = _LEAST_WORK.get(call.k.dtype, (0, 0))[h == kv_heads]
    elif t > MOST_QUERIES:
        least = 0  # not for the kernel at all, as `supports` says
    else:
        keys = _LEAST_KEYS_OF_SEVERAL if t <= 8 else _LEAST_KEYS_OF_MANY
        if s < keys:
            return No("{} keys, and for {} new queries the kernel is quicker from {} keys on", s, t, keys)
        if h == kv_heads and call.k.dtype == torch.float32 and q >= 128:
            return No("{} new queries over unshared float32 keys of {} elements are products torch is quicker at", t, q)
        least = _LEAST_WORK_OF_SEVERAL
    if work < least:
        return No("{} keys: {:,} products, and the kernel is quicker from {:,} on", s, work, least)
    return Yes()


def _stored(x: Tensor) -> Tensor:
    """The numbers as they lie in memory."""
    return x.numbers if isinstance(x, Packed) else x


def _scales(x: Tensor) -> Tensor | None:
    return x.scales if isinstance(x, Packed) else None
