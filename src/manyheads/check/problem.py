"""One call of attention, said in one way, and the right answer to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product

import torch
from torch import Tensor

from manyheads.ops import masks, softmax
from manyheads.ops.call import AttentionCall
from manyheads.ops.predicates import Visible

__all__ = ["Problem", "Sizes", "answer", "answer_weights", "default_scale", "numbers", "seen", "smaller"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a problem: q (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (.., value_dim)."""

    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    queries: int = 1
    keys: int = 1
    dim: int = 1
    value_dim: int = 1
    window: int = 1

    @property
    def elements(self) -> int:
        """Numbers in q, k and v."""
        keys_and_values = self.kv_heads * self.keys * (self.dim + self.value_dim)
        return self.batch * (self.heads * self.queries * self.dim + keys_and_values)


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A call: layout (batch, heads, tokens, dim), causal aligned at the end, `visible` True = may attend.

    `scale` None: 1/sqrt(dim). `window`: keys, oneself included; it implies causal. `visible` and `bias` have four axes,
    each 1 or full size; `keep` (batch, keys) is the padding mask, True = a token.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool = False
    window: int | None = None
    visible: Tensor | None = None
    keep: Tensor | None = None
    bias: Tensor | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        """The format in which it is asked."""
        return self.q.dtype

    def tensors(self) -> dict[str, Tensor]:
        """The tensors in it, by field."""
        return {f.name: value for f in fields(self) if isinstance(value := getattr(self, f.name), Tensor)}

    def to(self, dtype: torch.dtype, device: str = "cpu") -> Problem:
        """The same with floating tensors in `dtype` on `device`."""
        moved = {
            name: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in self.tensors().items()
        }
        return replace(self, **moved)  # type: ignore[arg-type]


_SHORT = 8  # an axis up to this is tried in all lengths


def numbers(generator: torch.Generator, *shape: int) -> Tensor:
    """Multiples of a half from -2 to 2: exact in every format, short on the screen."""
    return torch.randint(-4, 5, shape, generator=generator).float() / 2


def default_scale(problem: Problem) -> float:
    """What the scores are multiplied with: as asked, else 1/sqrt(dim) (arXiv 1706.03762, section 3.2.1)."""
    return problem.q.shape[-1] ** -0.5 if problem.scale is None else problem.scale


def seen(problem: Problem) -> Tensor:
    """Who may see whom, as (b, h, t, s) booleans."""
    (b, h, t, _), s = problem.q.shape, problem.k.shape[2]
    rule: Visible = masks.everything()
    if problem.causal:
        rule = rule & masks.causal()
    if problem.window is not None:
        rule = rule & masks.window(problem.window)
    if problem.visible is not None:
        rule = rule & masks.dense(problem.visible.cpu())
    if problem.keep is not None:
        rule = rule & masks.padding(problem.keep.cpu())
    return masks.materialise(rule, batch=b, heads=h, queries=t, keys=s).expand(b, h, t, s)


def answer(problem: Problem) -> Tensor:
    """The right output, in float64 on the CPU, by the plain reference; differentiable."""
    return softmax.run(_as_call(problem))


def answer_weights(problem: Problem) -> Tensor:
    """The right probabilities (b, h, t, s)."""
    return softmax.run_with_weights(_as_call(problem))[1]


def _as_call(problem: Problem) -> AttentionCall:
    exact = problem.to(torch.float64)
    return AttentionCall.checked(
        exact.q, exact.k, exact.v, scale=default_scale(exact), visible=seen(exact), bias=exact.bias,
        softcap=exact.softcap, sinks=exact.sinks,
    )  # fmt: skip


def smaller(full: Sizes, least: Sizes, valid: Callable[[Sizes], bool]) -> Iterator[Sizes]:
    """Every valid choice of sizes from `least` to `full`, those with the fewest numbers first; of long axes only lengths
    around the powers of two, where tiles end."""
    names = [f.name for f in fields(Sizes)]
    ranges = [_lengths(min(getattr(least, name), getattr(full, name)), getattr(full, name)) for name in names]
    made = (Sizes(**dict(zip(names, choice, strict=True))) for choice in product(*ranges))
    yield from sorted((sizes for sizes in made if valid(sizes)), key=lambda sizes: (sizes.elements, str(sizes)))


def _lengths(low: int, high: int) -> list[int]:
    near = {power + more for power in (16, 32, 64, 128) for more in (-1, 0, 1)}
    return [length for length in range(low, high + 1) if length <= _SHORT or length in near or length == high]
