"""Linear algebra of many small matrices: on one thread, since several wait for each other longer than they compute.

A symmetric eigenproblem of size 192 takes 3 to 6 ms on one thread, and seconds on two of a busy machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

__all__ = ["one_thread", "root", "top_vectors"]


@contextmanager
def one_thread() -> Iterator[None]:
    """torch, and the LAPACK beneath it, on one thread while this is open."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def root(matrix: Tensor, *, least: float = 1e-12) -> tuple[Tensor, Tensor]:
    """(M^(1/2), M^(-1/2)) of a symmetric positive matrix; the inverse leaves out directions below `least` of the largest,
    which are rounding."""
    with one_thread():
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    sizes = values.clamp_min(0).sqrt()
    there = values > least * values[-1].clamp_min(torch.finfo(values.dtype).tiny)
    inverse = torch.where(there, 1 / sizes.clamp_min(torch.finfo(values.dtype).tiny), torch.zeros_like(sizes))
    return (vectors * sizes) @ vectors.T, (vectors * inverse) @ vectors.T


def top_vectors(matrix: Tensor, count: int) -> tuple[Tensor, float]:
    """The eigenvectors of the `count` largest eigenvalues of a symmetric matrix, (n, count), and the sum of the others."""
    with one_thread():
        values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    return vectors[:, -count:].flip(1), float(values[: values.numel() - count].clamp_min(0).sum())
