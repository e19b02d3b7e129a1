"""How the axes of a call lie: query heads beside the key/value head they read, masks and biases of fewer axes."""

from __future__ import annotations

from torch import Tensor

__all__ = ["group", "ranked", "shapes", "ungroup"]


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


def shapes(**tensors: Tensor) -> str:
    """Names and shapes for a message, put together where it is raised and not before: while torch.compile traces, a size that
    is written into a text becomes a constant of the graph."""
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
