"""`manyheads::decode`: the kernel as an operator of torch, so that a compiled graph can hold it whole."""

from __future__ import annotations

from typing import Optional

import torch
from torch import Tensor

from manyheads.kernels import attend
from manyheads.kernels.keys import Keys

__all__ = ["decode"]


@torch.library.custom_op("manyheads::decode", mutates_args=())
def _operator(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    low: Tensor,
    high: Tensor,
    scale: float,
    bias: Optional[Tensor],  # noqa: UP045 - the schema is read from this text
    slopes: Optional[Tensor],  # noqa: UP045
    positions: Optional[Tensor],  # noqa: UP045
    softcap: Optional[float],  # noqa: UP045
    sinks: Optional[Tensor],  # noqa: UP045
    k_scale: Optional[Tensor],  # noqa: UP045
    v_scale: Optional[Tensor],  # noqa: UP045
    threads: int,
) -> Tensor:
    return attend.decode(
        q, k, v, Keys(low, high), scale=scale, bias=bias, slopes=slopes, positions=positions, softcap=softcap,
        sinks=sinks, k_scale=k_scale, v_scale=v_scale, threads=threads,
    )  # fmt: skip


@_operator.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_: object) -> Tensor:  # noqa: ARG001 - the schema names them
    return q.new_empty((*q.shape[:3], v.shape[3]))


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
    """`attend.decode`, same arguments, as one node of a graph."""
    return _operator(
        q, k, v, keys.low, keys.high, scale, bias, slopes, positions, softcap, sinks, k_scale, v_scale, threads
    )
