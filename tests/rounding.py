"""How far right answers may be apart on any processor: tolerances that come from the arithmetic.

A float operation gives x (1 + e) with |e| <= u, the unit roundoff: 2^-24 in float32, 2^-8 in bfloat16, 2^-11 in float16,
2^-53 in float64. What processors, libraries and numbers of threads do differently is the order of sums, whether a product
and a sum are rounded once (FMA), and how exp is computed: which e, never how large. So an answer is held against float64,
and what it may be off is worked out from u, the lengths of its sums and what happens to errors on the way.

    spread       one sum of n products, by theory
    attention    scores, softmax and mix of one call, by theory
    evaluated    any computation, a stack of layers too: by experiment on its own float64 evaluation
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Exact", "attention", "evaluated", "model", "spread", "unit"]

_LAMBDA = 6.0
_DRAWS = 3
_SAFETY = 3.0
_HUGE = 1e30  # a mask's number for "not seen", which is no measurement


def unit(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


def spread(count: int, dtype: torch.dtype) -> float:
    """The error of a sum of `count` products in any order, as a part of the sum of their absolute values.

    At worst count · u (Higham, Accuracy and Stability of Numerical Algorithms, 3.1). Roundings that do not conspire give
    lambda sqrt(count) u with probability 1 - 2 exp(-lambda^2 / 2) (Higham and Mary 2019, A new approach to probabilistic
    rounding error analysis); at lambda = 6 one sum in 33 million is further off, and by the blocks in which everyone sums,
    none. The smaller of the two.
    """
    return min(count, _LAMBDA * math.sqrt(count)) * unit(dtype)


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, weights: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(.., t, v) the most that softmax(scale · q k^T) v may be off, summed in `dtype`; `weights` (.., t, s) in float64.

    A score is off by ds <= spread(d + 2) scale |q| |k|. The softmax makes of that a relative error of each weight of
    2 max ds (its own score's and those of the sum below it), and adds spread(s + 4) for the sum, the exponential (two
    units in the last place), and the division. The mix then carries the weights' errors, and rounds once more:

        dy <= (2 max ds + spread(s + 4) + spread(s)) sum_j p_j |v_j|
    """
    q, k, v = (x.double().abs() for x in (q, k, v))
    off = spread(q.shape[-1] + 2, dtype) * abs(scale) * (q @ k.mT)
    off = torch.where(weights > 0, off, 0.0).amax(-1, keepdim=True)
    keys = k.shape[-2]
    return (2 * off + spread(keys + 4, dtype) + spread(keys, dtype)) * (weights @ v)


@dataclass(frozen=True, eq=False)
class Exact:
    """`value` in float64; `error`: the most by which an evaluation in the narrower type may be off in any element."""

    value: Tensor
    error: float

    def holds(self, found: Tensor) -> bool:
        """Whether `found` is this, rounded on the way."""
        return self.off(found) <= self.error

    def told(self, found: Tensor) -> bool:
        """Whether `found` is so far off that rounding alone does not explain a tenth of it."""
        return self.off(found) > 10 * self.error

    def off(self, found: Tensor) -> float:
        """The largest difference of an element."""
        return float((found.double() - self.value).abs().max())


def evaluated(run: Callable[[], Tensor], *, dtype: torch.dtype = torch.float32) -> Exact:
    """What `run`, a computation on float64 tensors, gives, and what it might give in `dtype`.

    Rounding is imitated (Monte Carlo arithmetic: Parker 1997; CESTAC: Vignes 1993): in float64 every result r of every
    operation becomes r (1 + e), with e drawn evenly from -u to u; sums of n products get sqrt(n) u times the sum of their
    absolute values instead, which is `spread` without its lambda. What the model makes of such errors, its conditioning,
    is so in the answer. Three draws are made; a processor is one more, and to be three times as far off as the worst
    element of them its roundings would have to conspire.

    Conversions to float32 within `run` (norms, rotary tables, softmax in models of transformers) are left out.
    """
    with torch.no_grad(), _Wide():
        value = run()
    largest = 0.0
    for seed in range(_DRAWS):
        with torch.no_grad(), _Rounding(unit(dtype), seed):
            largest = max(largest, float((run() - value).abs().max()))
    return Exact(value, _SAFETY * largest)


def model(
    model: Any,
    batch: Mapping[str, Any],
    *,
    around: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Exact:
    """The logits of a transformers model with these weights, by its own eager attention; the model is left as it is.

    `around` opens what surrounds the call, gates of a door perhaps, on the copy that is run.
    """
    wide = copy.deepcopy(model).double()
    wide.set_attn_implementation("eager")
    inputs = {name: x.double() if _floats(x) else x for name, x in batch.items()}
    with around(wide):
        return evaluated(lambda: wide(**inputs, **options)[0], dtype=dtype)


def _counts(x: Tensor) -> bool:
    """Whether all are whole numbers, positions perhaps, which floats add and multiply exactly."""
    return bool((x == x.round()).all())


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


class _Wide(TorchDispatchMode):
    """float64 where a model asks for float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        out = func(*args, **kwargs)
        if isinstance(out, Tensor):
            return self.made(func, args, out.double() if out.dtype == torch.float32 else out)
        return out

    def made(self, func: Any, args: Any, out: Tensor) -> Tensor:
        return out


# Results that are rounded: all that is neither a choice nor a copy of what was there.
_ROUNDED = {
    "_log_softmax", "_softmax", "add", "addcdiv", "addcmul", "cos", "cumsum", "div", "erf", "exp", "expm1", "gelu", "log",
    "log1p", "logsumexp", "mean", "mul", "pow", "reciprocal", "rsqrt", "rsub", "sigmoid", "silu", "sin", "softplus", "sqrt",
    "sub", "sum", "tanh", "var",
}  # fmt: skip
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "convolution": (0, 1), "mv": (0, 1)}


class _Rounding(_Wide):
    """And every result is as far off as rounding to a unit roundoff of `u` may leave it."""

    def __init__(self, u: float, seed: int) -> None:
        super().__init__()
        self.u, self.draw = u, torch.Generator().manual_seed(seed)

    def made(self, func: Any, args: Any, out: Tensor) -> Tensor:
        name = func._schema.name.removeprefix("aten::")
        plain = name.removesuffix("_") if not name.startswith("_") else name
        if not _floats(out) or (plain not in _ROUNDED and plain not in _PRODUCTS) or _counts(out):
            return out
        size = out.abs()
        if plain in _PRODUCTS:
            size = self._summed(func, plain, args)
        noise = (torch.rand(out.shape, generator=self.draw, dtype=torch.float64) * 2 - 1) * self.u * size
        noise = torch.where(out.abs() < _HUGE, noise, 0.0)
        return out.add_(noise) if plain != name else out + noise

    def _summed(self, func: Any, name: str, args: Any) -> Tensor:
        """sqrt(n) times the sum of the absolute values of the n products, which is what their sum is rounded by."""
        at = _PRODUCTS[name]
        absolute = [x.abs() if _floats(x) else x for x in args]
        left, right = args[at[0]], args[at[1]]
        count = right[0].numel() if name == "convolution" else left.shape[-1]
        return func(*absolute) * math.sqrt(count)
