"""How far right answers may be apart on any processor: tolerances that come from the arithmetic.

A float operation gives x (1 + e) with |e| <= u, the unit roundoff: 2^-24 in float32, 2^-8 in bfloat16, 2^-11 in float16,
2^-53 in float64. What processors, libraries and numbers of threads do differently is the order of sums, whether a product
and a sum are rounded once (FMA), and how exp is computed: which e, never how large. So an answer is held against float64,
and what it may be off is worked out from u, the lengths of its sums and what happens to errors on the way.

    Wide         runs any computation in float64, also where its code asks for float32
    evaluated    what a computation gives in float64, and how far rounding may take it in another type; `each`: several
    model        the same of a transformers model
    attention    the same of one attention call
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from manyheads.ops import softmax

__all__ = ["Exact", "Wide", "attention", "each", "evaluated", "model", "unit"]

_DRAWS = 3
_SAFETY = 3.0
_HUGE = 1e30  # a mask's number for "not seen", which is no measurement


def unit(dtype: torch.dtype) -> float:
    """u: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


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
        """The largest difference of an element; NaN for one that should be a number."""
        return _off(found, self.value)

    def near(self, found: Tensor, other: Tensor) -> bool:
        """Whether two answers may both be this, at places of `value` where they are compared."""
        return _off(found, other) <= 2 * self.error


def evaluated(run: Callable[[], Tensor], *, dtype: torch.dtype = torch.float32) -> Exact:
    """What `run`, a computation on float64 tensors, gives, and what it might give in `dtype`.

    A sum of n products is off by at most n u times the sum of their absolute values, in any order (Higham, Accuracy and
    Stability of Numerical Algorithms, 3.1), and by sqrt(n) u where roundings do not conspire (Higham and Mary 2019, A new
    approach to probabilistic rounding error analysis). Everything else is off by u or a few u times the result.

    Rounding is imitated (Monte Carlo arithmetic: Parker 1997; CESTAC: Vignes 1993): in float64 a number drawn evenly from
    -1 to 1 times that bound is added to every result of every operation. What the computation makes of such errors, its
    conditioning, is so in the answer. Three draws are made; a processor is one more, and to be three times as far off as
    the worst element of them its roundings would have to conspire.

    In float64 the value that others are held against is rounded as well: the bound is doubled. `run` has no gradients
    unless it asks for them.
    """
    with torch.no_grad():
        (exact,) = each(lambda: [run()], dtype=dtype)
    assert exact is not None
    return exact


def each(run: Callable[[], Iterable[Tensor | None]], *, dtype: torch.dtype = torch.float32) -> list[Exact | None]:
    """`evaluated` for several results at once, gradients perhaps; None for None."""
    with Wide(), sdpa_kernel(SDPBackend.MATH):  # torch's other kernels are one operation each, of which nothing is seen
        values = [None if x is None else x.detach() for x in run()]
    largest = [0.0] * len(values)
    for seed in range(_DRAWS):
        with _Rounding(unit(dtype), seed), sdpa_kernel(SDPBackend.MATH):
            found = list(run())
        for i, (value, x) in enumerate(zip(values, found, strict=True)):
            largest[i] = largest[i] if value is None or x is None else max(largest[i], _off(x.detach(), value))
    safety = _SAFETY * (2 if dtype == torch.float64 else 1)
    return [None if x is None else Exact(x, safety * most) for x, most in zip(values, largest, strict=True)]


def model(
    model: Any,
    batch: Mapping[str, Any],
    *,
    around: Callable[[Any], AbstractContextManager[Any]] = nullcontext,
    pick: Callable[[Any], Tensor] = lambda out: out[0],
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Exact:
    """The logits of a transformers model with these weights, by its own eager attention; the model is left as it is.

    `around` opens what surrounds the call, gates of a door perhaps, on the copy that is run; `pick` takes from its output
    what is looked at.
    """
    wide = copy.deepcopy(model).double()
    wide.set_attn_implementation("eager")
    inputs = {name: x.double() if _floats(x) else x for name, x in batch.items()}
    with around(wide):
        return evaluated(lambda: pick(wide(**inputs, **options)), dtype=dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, *, dtype: torch.dtype = torch.float32, **options: Any) -> Exact:
    """softmax(scale q k^T + ..) v of these very numbers, by the plain twin; `options` are those of `softmax.attention`."""
    wide = {name: x.double() if _floats(x) else x for name, x in options.items()}
    return evaluated(lambda: softmax.attention(q.double(), k.double(), v.double(), **wide), dtype=dtype)


def _off(found: Tensor, value: Tensor) -> float:
    assert found.shape == value.shape, f"{tuple(found.shape)} is not {tuple(value.shape)}"
    return float((found.detach().double() - value.detach().double()).abs().max())


def _counts(x: Tensor) -> bool:
    """Whether all are whole numbers, positions perhaps, which floats add and multiply exactly."""
    return bool((x == x.round()).all())


def _floats(x: Any) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


class Wide(TorchDispatchMode):
    """A context: float64 where float32 is asked for or made, as the norms and the softmax of transformers' models do."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") == torch.float32:
            kwargs["dtype"] = torch.float64
        out = func(*args, **kwargs)
        outs = [_widened(x) for x in out] if isinstance(out, tuple) else [_widened(out)]
        if _floats(outs[0]):
            outs[0] = self.made(func, args, kwargs, outs)
        return tuple(outs) if isinstance(out, tuple) else outs[0]

    def made(self, func: Any, args: Any, kwargs: Any, outs: list[Any]) -> Tensor:
        """What becomes of the result of an operation."""
        return outs[0]


def _widened(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.dtype == torch.float32 else x


# What is rounded once, and functions of which libraries promise one unit in the last place, two of ours. All else is a
# choice or a copy of what was there.
_ONCE = {"add", "addcdiv", "addcmul", "div", "mul", "reciprocal", "rsub", "sqrt", "sub"}
_TWICE = {
    "cos", "erf", "exp", "expm1", "gelu", "log", "log1p", "log_sigmoid_forward", "pow", "rsqrt", "sigmoid", "silu", "sin",
    "softplus", "tanh",
}  # fmt: skip
_SUMS = {"cumsum", "logsumexp", "mean", "sum", "var"}
_SOFTMAXES = {"_log_softmax", "_safe_softmax", "_softmax"}
# Where their two factors stand among the arguments.
_PRODUCTS = {"mm": (0, 1), "bmm": (0, 1), "mv": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2), "convolution": (0, 1)}


class _Rounding(Wide):
    """And every result is as far off as rounding to a unit roundoff of `u` may leave it."""

    def __init__(self, u: float, seed: int) -> None:
        super().__init__()
        self.u, self.draw = u, torch.Generator().manual_seed(seed)

    def made(self, func: Any, args: Any, kwargs: Any, outs: list[Any]) -> Tensor:
        """The result, a little off."""
        out: Tensor = outs[0]
        name = func._schema.name.removeprefix("aten::")
        plain = name if name.startswith("_") else name.removesuffix("_")
        size = None if _counts(out) else _rounded(plain, func, args, kwargs, outs)
        if size is None:
            return out
        noise = (torch.rand(out.shape, generator=self.draw, dtype=torch.float64) * 2 - 1) * self.u * size
        noise = torch.where(out.abs() < _HUGE, noise, 0.0)
        return out.add_(noise) if plain != name else out + noise


def _rounded(name: str, func: Any, args: Any, kwargs: Any, outs: list[Any]) -> Tensor | None:
    """What times u each element may be off by the operation itself; None where it rounds nothing."""
    out: Tensor = outs[0]
    if name in _ONCE or name in _TWICE:
        return out.abs() * (1 if name in _ONCE else 2)
    if name in _SOFTMAXES:
        # A sum and a quotient; an exponential, which torch's fused attention takes by a function of its own that is off by
        # up to 20 units in the last place (exp_u20 in ATen/cpu/vec, where a processor has AVX2 or AVX-512); where blocks
        # of keys are taken one by one it is exp(s - log sum exp), of which the exponent is rounded like the scores.
        scores = torch.where(args[0].abs() < _HUGE, args[0], 0.0).abs().amax(args[1], keepdim=True)
        return out.abs() * (2 * 20 + math.sqrt(out.shape[args[1]]) + scores)
    if name == "_softmax_backward_data":  # of (g, p): p (g - sum of g p)
        slope, weights, axis = args[0].abs(), args[1].abs(), args[2]
        return weights * (slope + (slope * weights).sum(axis, keepdim=True)) * math.sqrt(out.shape[axis])
    if name == "native_layer_norm":  # of x (y, mean, 1 / deviation): where x is far from 0, so is the mean
        weight = 1 if args[2] is None else args[2].abs()
        return 4 * out.abs() + args[0].abs() * outs[2] * weight
    absolute = [x.abs() if _floats(x) else x for x in args]
    if name in _SUMS and name != "logsumexp":
        return func(*absolute, **kwargs).abs() * math.sqrt(args[0].numel() / (1 if name == "cumsum" else out.numel()))
    if name in _PRODUCTS:
        left, right = (args[i] for i in _PRODUCTS[name])
        count = right[0].numel() if name == "convolution" else left.shape[-1]
        return func(*absolute, **kwargs) * math.sqrt(count)
    return out.abs() if name in _SUMS else None
