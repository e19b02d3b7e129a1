"""A call of multi-head attention, and the right answer to it.

    q_h = x W_q,h + b_q,h    k_j = m W_k,j + b_k,j    v_j = m W_v,j + b_v,j
    y = sum over h of attention(q_h, k_j, v_j) W_o,h + b_o        with j = h // (H/K)

The weights have their axes apart: W_q (m, h, d), W_k and W_v (m, k, d), W_o (h, d, n); biases (h, d), (k, d), (n).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import Tensor

from manyheads.check.problem import Problem, Sizes, answer, numbers

__all__ = [
    "BIASES",
    "WEIGHTS",
    "Multihead",
    "Widths",
    "join",
    "lift",
    "multihead",
    "natural",
    "present",
    "remade",
    "whole_answer",
    "with_weights",
]

WEIGHTS = ("w_q", "w_k", "w_v", "w_o")
BIASES = ("b_q", "b_k", "b_v", "b_o")


@dataclass(frozen=True, eq=False, kw_only=True)
class Multihead(Problem):
    """A problem whose q, k and v are projections, in float64: made by `multihead`.

    `x` (b, t, m) gives the queries, `memory` (b, s, m) the keys, `source` (b, s, m) the values; each is None where it is
    the one before. `weights`: by the names in WEIGHTS and BIASES. `shown`: where the problem carries a plain one, so many
    numbers of each head are its output; 0: all of y.
    """

    x: Tensor
    memory: Tensor | None = None
    source: Tensor | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    shown: int = 0

    def to(self, dtype: torch.dtype, device: str = "cpu") -> Multihead:
        """The same with floating tensors in `dtype` on `device`; q, k and v stay float64, of what was rounded."""

        def moved(tensor: Tensor | None) -> Tensor | None:
            return (
                tensor if tensor is None else tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)
            )

        rest = {name: moved(tensor) for name, tensor in self.tensors().items() if name not in ("q", "k", "v")}
        weights = {name: moved(tensor) for name, tensor in self.weights.items()}
        return remade(self, **rest, weights=weights)

    @property
    def dtype(self) -> torch.dtype:
        """The format in which it is asked."""
        return self.x.dtype

    @property
    def core(self) -> Problem:
        """What is asked of the heads, once x is projected."""
        return Problem(**{f.name: getattr(self, f.name) for f in fields(Problem)})

    @property
    def inputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """What queries, keys and values are projected from."""
        memory = self.x if self.memory is None else self.memory
        return self.x, memory, memory if self.source is None else self.source

    @property
    def width(self) -> int:
        """Numbers in a token of x."""
        return int(self.x.shape[-1])

    @property
    def head_dim(self) -> int:
        """Numbers in a head of queries and keys."""
        return int(self.weights["w_q"].shape[-1])


def multihead(**asked: Any) -> Multihead:
    """A Multihead from all its fields but q, k and v."""
    weights = asked["weights"]
    x = asked["x"]
    memory = x if asked.get("memory") is None else asked["memory"]
    source = memory if asked.get("source") is None else asked["source"]
    q, k, v = (
        project(tokens, weights[f"w_{role}"], weights.get(f"b_{role}"))
        for role, tokens in zip("qkv", (x, memory, source), strict=True)
    )
    return Multihead(q=q, k=k, v=v, **asked)


def remade(problem: Multihead, **changes: Any) -> Multihead:
    """The same with some fields changed, and q, k and v made anew."""
    kept = {f.name: getattr(problem, f.name) for f in fields(problem) if f.name not in ("q", "k", "v")}
    return multihead(**{**kept, **changes})


def project(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """(b, t, m) to (b, h, t, d) in float64."""
    out = torch.einsum("btm,mhd->bhtd", tokens.double(), weight.double())
    return out if bias is None else out + bias.double()[:, None]


def join(heads: Tensor, problem: Multihead) -> Tensor:
    """(b, h, t, d) through the output projection: (b, t, n)."""
    out = torch.einsum("bhtd,hdn->btn", heads.double(), problem.weights["w_o"].double())
    bias = problem.weights.get("b_o")
    return out if bias is None else out + bias.double()


def present(y: Tensor, problem: Multihead) -> Tensor:
    """An output (b, t, n) as judges read it: the heads of the plain problem that is carried, or (b, 1, t, n)."""
    if not problem.shown:
        return y[:, None]
    heads = problem.q.shape[1]
    return y.unflatten(-1, (heads, y.shape[-1] // heads)).transpose(1, 2)[..., : problem.shown]


def whole_answer(problem: Multihead) -> Tensor:
    """The right y, as judges read it."""
    return present(join(answer(problem.core), problem), problem)


@dataclass(frozen=True, kw_only=True)
class Widths:
    """How a plain problem is carried: `inputs` apart ("x", "x+memory" or "qkv"), and the width of a head, 0 for any."""

    inputs: str = "x"
    head_dim: int = 0


def lift(problem: Problem, widths: Widths) -> Multihead | None:
    """A problem of q, k and v as one of x and weights: x holds them side by side, the weights pick each out, and W_o
    changes nothing. None where a head is too narrow for it, or x would need as many keys as queries.

    Where one input holds several of q, k and v, its heads are four times as wide, and q is doubled for the scale.
    """
    (_, h, t, d), (_, kv_heads, s, e) = problem.q.shape, problem.v.shape
    held = {"x": 3, "x+memory": 2, "qkv": 1}[widths.inputs]
    head_dim = widths.head_dim or (max(d, e) if held == 1 else 4 * max(d, e))
    m = h * head_dim
    needed = {
        "x": h * d + kv_heads * (d + e),
        "x+memory": max(h * d, kv_heads * (d + e)),
        "qkv": max(h * d, kv_heads * e),
    }
    if needed[widths.inputs] > m or max(d, e) > head_dim or (held == 3 and t != s):
        return None
    parts = [x.transpose(1, 2).flatten(2) for x in (problem.q, problem.k, problem.v)]
    pieces = {"x": [parts], "x+memory": [parts[:1], parts[1:]], "qkv": [[part] for part in parts]}[widths.inputs]
    tokens = [_padded(torch.cat(piece, -1), m) for piece in pieces]
    factor = 1.0 if problem.scale is not None else (head_dim / d) ** 0.5
    starts = {"x": (0, h * d, (h + kv_heads) * d), "x+memory": (0, 0, kv_heads * d), "qkv": (0, 0, 0)}[widths.inputs]
    like = problem.q
    weights = {
        "w_q": _picking(like, m, h, head_dim, d, starts[0]) * factor,
        "w_k": _picking(like, m, kv_heads, head_dim, d, starts[1]),
        "w_v": _picking(like, m, kv_heads, head_dim, e, starts[2]),
        "w_o": torch.eye(m, dtype=like.dtype, device=like.device).view(h, head_dim, m),
    }
    kept = {f.name: getattr(problem, f.name) for f in fields(problem) if f.name not in ("q", "k", "v")}
    named = dict(zip(("x", "memory", "source"), tokens, strict=False))
    return multihead(**kept, **named, weights=weights, shown=e)


def _padded(x: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(x, (0, width - x.shape[-1]))


def _picking(like: Tensor, m: int, heads: int, head_dim: int, dim: int, start: int) -> Tensor:
    """(m, heads, head_dim): the first `dim` numbers of head h are those from start + h·dim on."""
    weight = torch.zeros(m, heads, head_dim, dtype=like.dtype, device=like.device)
    for head in range(heads):
        for number in range(dim):
            weight[start + head * dim + number, head, number] = 1
    return weight


def natural(
    sizes: Sizes, generator: torch.Generator, *, biases: bool = False, cross: bool = False, extra: int = 0
) -> Multihead:
    """Random x and weights, multiples of 1/2 and 1/8, so that scores are near 1; heads of sizes.dim numbers, and x as wide
    as all of them and `extra` more. `cross`: keys and values come from a memory."""
    s = sizes
    m = s.heads * s.dim + extra
    shapes = {
        "w_q": (m, s.heads, s.dim), "w_k": (m, s.kv_heads, s.dim), "w_v": (m, s.kv_heads, s.dim), "w_o": (s.heads, s.dim, m),
    }  # fmt: skip
    weights = {
        name: numbers(generator, *shape) / (4 if name in ("w_q", "w_k") else 1) for name, shape in shapes.items()
    }
    if biases:
        weights |= {
            "b_q": numbers(generator, s.heads, s.dim), "b_k": numbers(generator, s.kv_heads, s.dim),
            "b_v": numbers(generator, s.kv_heads, s.dim), "b_o": numbers(generator, m),
        }  # fmt: skip
    return multihead(
        x=numbers(generator, s.batch, s.queries, m), weights=weights,
        memory=numbers(generator, s.batch, s.keys, m) if cross else None,
    )  # fmt: skip


def with_weights(problem: Multihead, **weights: Tensor) -> Multihead:
    """The same with other weights."""
    return remade(problem, weights={**problem.weights, **weights})
