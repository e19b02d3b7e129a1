"""Written out = tiled = torch's SDPA: one function in three forms, values and gradients, and by the definition."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyheads.ops import bias as biases
from manyheads.ops import masks, sdpa, softmax, tiled
from support.attention_calls import CALLS, LEARNED, SHAPES, Shape, arguments, tensors
from support.attention_oracle import attention as by_definition

Form = Callable[..., Tensor]
FORMS: dict[str, Form] = {
    "softmax": softmax.attention,
    "tiled": partial(tiled.attention, tile=16),
    "sdpa": sdpa.attention,
}


def run(form: Form, q: Tensor, k: Tensor, v: Tensor, asked: dict[str, object]) -> list[Tensor]:
    """The output, and the gradients of every tensor that can have one, from a loss that tells elements apart."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in {"q": q, "k": k, "v": v}.items()}
    asked = dict(asked)
    for name in LEARNED:
        if isinstance(asked.get(name), Tensor):
            leaves[name] = asked[name] = asked[name].detach().clone().requires_grad_()  # type: ignore[attr-defined]
    out = form(leaves["q"], leaves["k"], leaves["v"], **asked)
    weight = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), list(leaves.values()))]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    """Over all tensors; NaN counts as infinite."""
    gaps = [(a.double() - b.double()).abs().nan_to_num(nan=torch.inf) for a, b in zip(one, other, strict=True)]
    return max((gap.max().item() for gap in gaps if gap.numel()), default=0.0)


@pytest.mark.parametrize("form", ["tiled", "sdpa"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("call", CALLS)
def test_values_and_gradients(call: str, shape: str, form: str, unwritten: None) -> None:
    q, k, v = tensors(SHAPES[shape])
    asked = arguments(call, SHAPES[shape])
    assert largest_difference(run(FORMS[form], q, k, v, asked), run(softmax.attention, q, k, v, asked)) < 1e-12


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 2e-6), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize(
    "call", ["causal", "holes", "bias", "alibi", "softcap and bias", "sinks and window", "all at once"]
)
def test_other_dtypes_round_once(call: str, dtype: torch.dtype, most: float, form: str) -> None:
    """Against float64 on the same rounded inputs: what is left is the rounding of the result, values near 1."""
    shape = SHAPES["grouped"]
    q, k, v = tensors(shape, dtype=dtype)
    asked = arguments(call, shape, dtype=dtype)
    exact = {name: x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for name, x in asked.items()}
    want = softmax.attention(q.double(), k.double(), v.double(), **exact)
    got = FORMS[form](q, k, v, **asked)
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() < most


@pytest.mark.parametrize("call", CALLS)
def test_no_gradient_is_nan(call: str) -> None:
    q, k, v = tensors(SHAPES["more-queries"])
    for form in FORMS.values():
        assert all(part.isfinite().all() for part in run(form, q, k, v, arguments(call, SHAPES["more-queries"])))


SMALL = Shape(2, 4, 2, 5, 7, 3, 2)


def _offset(asked: dict[str, object], b: int) -> int:
    given_offset = asked.get("offset", SMALL.s - SMALL.t)
    return int(given_offset[b]) if isinstance(given_offset, Tensor) else int(given_offset)  # type: ignore[index, call-overload]


# Each visible pair from absolute positions i (query) and j (key), said again in plain Python.
BY_DEFINITION: dict[str, Callable[[int, int], bool]] = {
    "plain": lambda i, j: True,
    "causal": lambda i, j: j <= i,
    "window": lambda i, j: i - 5 < j <= i,
    "band": lambda i, j: abs(i - j) <= 3,
    "chunk": lambda i, j: j <= i and i // 7 == j // 7,
    "outside the band": lambda i, j: abs(i - j) > 4,
    "softcap": lambda i, j: j <= i,
    "sinks": lambda i, j: True,
    "from the start": lambda i, j: j <= i,
    "before the start": lambda i, j: j <= i,
    "an offset each": lambda i, j: j <= i,
    "alibi": lambda i, j: j <= i,
    "bias a head": lambda i, j: j <= i,
    "softcap and bias": lambda i, j: True,
}


@pytest.mark.parametrize("call", BY_DEFINITION)
def test_by_the_definition(call: str) -> None:
    q, k, v = tensors(SMALL)
    asked = arguments(call, SMALL)
    bias, sinks = asked.get("bias"), asked.get("sinks")
    spread = bias.expand(SMALL.b, SMALL.h, SMALL.t, SMALL.s) if isinstance(bias, Tensor) else None

    def added(b: int, h: int, i: int, j: int) -> float:
        if isinstance(bias, biases.Alibi):
            return -(2.0 ** (-2 * (h + 1))) * abs(_offset(asked, b) + i - j)  # four heads: 2^-2, 2^-4, 2^-6, 2^-8
        return 0.0 if spread is None else spread[b, h, i, j].item()

    out, weights = by_definition(
        q, k, v, scale=asked["scale"], softcap=asked.get("softcap"), bias=added,
        sees=lambda b, h, i, j: BY_DEFINITION[call](_offset(asked, b) + i, j),
        sinks=None if sinks is None else sinks.tolist(),
    )  # fmt: skip
    got, shown = softmax.attention(q, k, v, **asked, return_weights=True)
    assert largest_difference([got, shown], [out, weights]) < 1e-13


@settings(max_examples=60)
@given(
    shape=st.builds(
        Shape, b=st.integers(0, 3), h=st.just(6), k=st.sampled_from([1, 2, 3, 6]), t=st.integers(0, 9),
        s=st.integers(0, 11), q=st.integers(1, 5), v=st.integers(1, 5),
    ),
    call=st.sampled_from(sorted(CALLS)),
    tile=st.integers(1, 12),
    seed=st.integers(0, 2**16),
)  # fmt: skip
def test_any_shape(shape: Shape, call: str, tile: int, seed: int) -> None:
    if "ring" in call and shape.s < 2:
        return
    q, k, v = tensors(shape, seed=seed)
    asked = arguments(call, shape, seed=seed)
    want = run(softmax.attention, q, k, v, asked)
    assert want[0].shape == (shape.b, shape.h, shape.t, shape.v)
    assert all(part.isfinite().all() for part in want)
    assert largest_difference(run(partial(tiled.attention, tile=tile), q, k, v, asked), want) < 1e-12
    assert largest_difference(run(sdpa.attention, q, k, v, asked), want) < 1e-12


@pytest.mark.parametrize("form", FORMS)
def test_gradcheck(form: str) -> None:
    shape = Shape(1, 2, 1, 3, 5, 2, 3)
    leaves = [x.requires_grad_() for x in tensors(shape)]
    added, sinks = torch.randn(3, 5, dtype=torch.float64), torch.randn(2, dtype=torch.float64)

    def call(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, sinks: Tensor) -> Tensor:
        seen = masks.window(2) & masks.padding(torch.tensor([[True, True, True, False, True]]))
        asked = {"visible": seen, "bias": bias, "scale": 0.6}
        extra = {} if form == "sdpa" else {"sinks": sinks, "softcap": 1.5}
        return FORMS[form](q, k, v, **asked, **extra)

    assert torch.autograd.gradcheck(call, (*leaves, added.requires_grad_(), sinks.requires_grad_()))


def test_gradients_of_gradients() -> None:
    leaves = [x.requires_grad_() for x in tensors(Shape(1, 2, 1, 3, 4, 2, 3))]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiled.attention(q, k, v, scale=0.6, visible=masks.causal(), softcap=2.0, tile=2)

    assert torch.autograd.gradgradcheck(call, leaves)


@pytest.mark.parametrize("form", [softmax.attention, tiled.attention])
def test_autocast_does_not_narrow_the_softmax(form: Form) -> None:
    """Inside autocast products would be 16 bits wide, and a backward outside of it would not fit its forward."""
    q, k, v = tensors(SHAPES["grouped"], dtype=torch.float32)
    asked = arguments("causal", SHAPES["grouped"])
    want = run(form, q, k, v, asked)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = run(form, q, k, v, asked)
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        out = form(*leaves, **asked)
    assert out.dtype == torch.float32
    assert torch.equal(out, want[0])
    weight = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
    outside = torch.autograd.grad((out * weight).sum(), leaves)
    assert largest_difference(want[1:], list(outside)) < 1e-6
    assert torch.equal(inside[0], want[0])
