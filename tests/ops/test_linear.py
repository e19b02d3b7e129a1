"""Linear attention: recurrent = quadratic = chunked, values, states and gradients; by the equations; padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyheads.ops import linear

f64 = torch.float64
FORMS: dict[str, Callable[..., tuple[Tensor, linear.LinearState]]] = {
    "recurrent": linear.recurrent,
    "quadratic": linear.quadratic,
    "chunked": partial(linear.chunked, size=4),
}
HEADS = [(4, 4, 4), (8, 4, 4), (4, 4, 8), (2, 1, 4), (6, 1, 1)]  # query, key, value


def call(
    rule: str, heads: tuple[int, int, int], *, b: int = 2, t: int = 11, f: int = 5, v: int = 3, fine: bool = False,
    shared: bool = False, normalised: bool = False, past: bool = False, padded: bool = False,
) -> tuple[list[Tensor], dict[str, object], list[Tensor]]:  # fmt: skip
    """(q, k, v), keywords, and every tensor that has a gradient."""
    n = max(heads[1:])
    q, k = torch.rand(b, heads[0], t, f, dtype=f64), torch.rand(b, heads[1], t, f, dtype=f64)
    tensors = [q, k, torch.randn(b, heads[2], t, v, dtype=f64)]
    asked: dict[str, object] = {"rule": rule, "scale": 0.7, "normalised": normalised}
    learned = list(tensors)
    if "gated" in rule:
        asked["decay"] = -torch.rand(b, n, t, *((f,) if fine else ()), dtype=f64)
        learned.append(asked["decay"])
    if "delta" in rule:
        asked["beta"] = torch.rand(b, 1 if shared else n, t, dtype=f64)
        learned.append(asked["beta"])
    if past:
        state = linear.LinearState(
            torch.randn(b, n, f, v, dtype=f64), torch.rand(b, n, f, dtype=f64) if normalised else None
        )
        asked["state"] = state
        learned += [x for x in (state.sums, state.norms) if x is not None]
    if padded:
        asked["keep"] = torch.rand(b, t) > 0.3
    for x in learned:
        x.requires_grad_()
    return tensors, asked, learned


def run(form: Callable[..., tuple[Tensor, linear.LinearState]], made: tuple[object, ...]) -> list[Tensor]:
    tensors, asked, learned = made
    out, state = form(*tensors, **asked)
    shown = [x for x in (out, state.sums, state.norms) if x is not None]
    loss = sum((x * torch.sin(torch.arange(x.numel(), dtype=f64)).view(x.shape)).sum() for x in shown)
    grads = torch.autograd.grad(loss, learned, allow_unused=True)
    return [*shown, *(g if g is not None else torch.zeros(()) for g in grads)]


def differ(one: list[Tensor], other: list[Tensor]) -> float:
    return max(
        ((a - b).abs().nan_to_num(torch.inf).max().item() for a, b in zip(one, other, strict=True) if a.numel()),
        default=0.0,
    )


@pytest.mark.parametrize("heads", HEADS, ids=str)
@pytest.mark.parametrize("rule", linear.RULES)
@pytest.mark.parametrize("past", [False, True], ids=["fresh", "past"])
def test_three_forms_are_one_function(rule: str, heads: tuple[int, int, int], past: bool, unwritten: None) -> None:
    for flag in (False, True):
        normalised = flag and "delta" not in rule
        made = call(rule, heads, fine=flag, shared=flag, normalised=normalised, past=past, padded=flag)
        want = run(linear.recurrent, made)
        assert all(x.isfinite().all() for x in want)
        assert differ(run(linear.quadratic, made), want) < 1e-12
        for size in (1, 3, 4, 11, 64):
            assert differ(run(partial(linear.chunked, size=size), made), want) < 1e-12


@settings(max_examples=40)
@given(
    rule=st.sampled_from(linear.RULES), heads=st.sampled_from(HEADS), b=st.integers(0, 2), t=st.integers(0, 9),
    f=st.integers(1, 4), v=st.integers(1, 4), size=st.integers(1, 10), flags=st.tuples(*[st.booleans()] * 5),
)  # fmt: skip
def test_any_shape(
    rule: str, heads: tuple[int, int, int], b: int, t: int, f: int, v: int, size: int, flags: tuple[bool, ...]
) -> None:
    fine, shared, past, padded, normalised = flags
    made = call(
        rule, heads, b=b, t=t, f=f, v=v, fine=fine, shared=shared, past=past, padded=padded,
        normalised=normalised and "delta" not in rule,
    )  # fmt: skip
    want = run(linear.recurrent, made)
    assert tuple(want[0].shape) == (b, max(heads), t, v)
    assert differ(run(linear.quadratic, made), want) < 1e-11
    assert differ(run(partial(linear.chunked, size=size), made), want) < 1e-11


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", linear.RULES)
def test_by_the_equations(rule: str, form: str) -> None:
    """Token by token in plain numbers, one head: decay, correct, write, read."""
    (q, k, v), asked, _ = call(rule, (1, 1, 1), b=1, t=6, f=3, v=2)
    out, state = FORMS[form](q, k, v, **asked)
    held = [[0.0, 0.0] for _ in range(3)]
    for t in range(6):
        q_t, k_t, u_t = q[0, 0, t].tolist(), k[0, 0, t].tolist(), v[0, 0, t].tolist()
        if "gated" in rule:
            held = [[x * math.exp(asked["decay"][0, 0, t].item()) for x in row] for row in held]
        if "delta" in rule:
            read = [sum(k_t[i] * held[i][j] for i in range(3)) for j in range(2)]
            u_t = [asked["beta"][0, 0, t].item() * (u_t[j] - read[j]) for j in range(2)]
        held = [[held[i][j] + k_t[i] * u_t[j] for j in range(2)] for i in range(3)]
        want = [0.7 * sum(q_t[i] * held[i][j] for i in range(3)) for j in range(2)]
        assert out[0, 0, t].tolist() == pytest.approx(want, abs=1e-13)
    assert state.sums[0, 0].tolist() == [pytest.approx(row, abs=1e-13) for row in held]


@pytest.mark.parametrize("form", FORMS)
def test_normalised_is_a_weighted_mean(form: str) -> None:
    """y_i = sum_j phi(q_i) phi(k_j) v_j / sum_j phi(q_i) phi(k_j), j <= i (arXiv 2006.16236, equation 9)."""
    q, k = (linear.features(torch.randn(1, 2, 5, 3, dtype=f64), "elu+1") for _ in range(2))
    v = torch.randn(1, 2, 5, 4, dtype=f64)
    pairs = (q @ k.mT).tril()
    out, _ = FORMS[form](q, k, v, normalised=True, scale=0.3)
    assert torch.allclose(out, pairs @ v / pairs.sum(-1, keepdim=True), atol=1e-14)


def test_without_causality_every_token_reads_the_last_state() -> None:
    (q, k, v), asked, _ = call("sum", (4, 2, 2), normalised=True, padded=True)
    out, state = linear.quadratic(q, k, v, **asked, causal=False)
    kept = torch.where(asked["keep"][:, None, :, None], k, 0.0).repeat_interleave(2, 1)
    pairs = q @ kept.mT
    assert torch.allclose(out, pairs @ v.repeat_interleave(2, 1) / pairs.sum(-1, keepdim=True), atol=1e-13)
    _, causal = linear.quadratic(q, k, v, **asked)
    assert torch.allclose(state.sums, causal.sums, atol=1e-13)
    assert torch.allclose(state.norms, causal.norms, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", linear.RULES)
def test_the_state_carries_a_sequence_on(rule: str, form: str) -> None:
    (q, k, v), asked, _ = call(rule, (4, 2, 2), fine=True, normalised="delta" not in rule)
    whole, last = FORMS[form](q, k, v, **asked)

    def cut(at: slice) -> tuple[list[Tensor], dict[str, object]]:
        own = {name: asked[name][:, :, at] for name in ("decay", "beta") if name in asked}
        return [x[:, :, at] for x in (q, k, v)], {**asked, **own}

    (first, asked_1), (second, asked_2) = cut(slice(0, 6)), cut(slice(6, 11))
    out_1, state = FORMS[form](*first, **asked_1)
    out_2, state = FORMS[form](*second, **{**asked_2, "state": state})
    assert torch.allclose(torch.cat((out_1, out_2), 2), whole, atol=1e-13)
    assert torch.allclose(state.sums, last.sums, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", linear.RULES)
def test_o98_left_padding_leaves_no_trace(rule: str, form: str) -> None:
    """elu(0) + 1 = 1 would count in the normaliser: the mask acts after the feature map, on NaN too."""
    normalised = "delta" not in rule
    raw = [torch.randn(1, 2, 6, 3, dtype=f64) for _ in range(3)]
    (_, asked, _) = call(rule, (2, 2, 2), b=1, t=6, f=3, fine=True, normalised=normalised)
    bare = {name: x[:, :, 2:] if isinstance(x, Tensor) else x for name, x in asked.items()}
    q, k, v = (x[:, :, 2:] for x in raw)
    want, state = FORMS[form](linear.features(q, "elu+1"), linear.features(k, "elu+1"), v, **bare)

    padded = [x.detach().clone() for x in raw]
    padded[2][:, :, :2] = torch.nan
    padded = [x.requires_grad_() for x in padded]
    keep = torch.tensor([[False, False, True, True, True, True]])
    q, k = (linear.features(x, "elu+1") for x in padded[:2])
    out, held = FORMS[form](q, k, padded[2], **asked, keep=keep)
    assert torch.allclose(out[:, :, 2:], want, atol=1e-13)
    assert torch.allclose(held.sums, state.sums, atol=1e-13)
    for grad in torch.autograd.grad(out[:, :, 2:].sum(), padded):
        assert not grad[:, :, :2].any()
        assert grad.isfinite().all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", linear.RULES)
def test_padding_anywhere_neither_writes_nor_decays(rule: str, form: str) -> None:
    (q, k, v), asked, _ = call(rule, (4, 2, 2), b=1, fine=True, normalised="delta" not in rule)
    keep = torch.tensor([[True, False, True, True, False, False, True, True, True, False, False]])
    out, state = FORMS[form](q, k, v, **asked, keep=keep)
    bare = {name: x[:, :, keep[0]] if isinstance(x, Tensor) else x for name, x in asked.items()}
    want, held = FORMS[form](*(x[:, :, keep[0]] for x in (q, k, v)), **bare)
    assert torch.allclose(out[:, :, keep[0]], want, atol=1e-13)
    assert torch.allclose(state.sums, held.sums, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_nothing_to_divide_by_is_zero(form: str) -> None:
    q, k, v = (torch.zeros(1, 1, 3, 2, dtype=f64, requires_grad=True) for _ in range(3))
    out, _ = FORMS[form](linear.features(q, "relu"), linear.features(k, "relu"), v + 1, normalised=True)
    assert not out.any()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_feature_maps() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0], dtype=f64).view(1, 1, 1, 3)
    assert linear.features(x, "identity").flatten().tolist() == [-2.0, 0.0, 3.0]
    assert linear.features(x, "elu+1").flatten().tolist() == pytest.approx([math.exp(-2.0), 1.0, 4.0])
    assert linear.features(x, "relu").flatten().tolist() == [0.0, 0.0, 3.0]
    weight = torch.tensor([[1.0, -1.0], [5.0, 5.0], [0.0, 1.0]], dtype=f64)[None]
    assert linear.features(x, "learned", weight).flatten().tolist() == [0.0, 5.0]
    two = torch.randn(1, 2, 3, 4, dtype=f64), torch.randn(2, 4, 5, dtype=f64)
    mapped = linear.features(two[0], "learned", two[1])
    assert torch.allclose(mapped[0, 1], torch.relu(two[0][0, 1] @ two[1][1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("rule", linear.RULES)
def test_narrow_inputs_are_summed_wide(rule: str, dtype: torch.dtype) -> None:
    (q, k, v), asked, _ = call(rule, (4, 2, 2), t=40)
    narrow = {name: x.detach().to(dtype) if isinstance(x, Tensor) else x for name, x in asked.items()}
    tensors = [(x.detach() / 4).to(dtype) for x in (q, k, v)]
    exact = {name: x.double() if isinstance(x, Tensor) else x for name, x in narrow.items()}
    want, _ = linear.recurrent(*(x.double() for x in tensors), **exact)
    steps = 40 if dtype == torch.float32 else 3  # float32 is rounded at every token, the others once
    most = steps * torch.finfo(dtype).eps * want.abs().max().item()
    for form in FORMS.values():
        out, state = form(*tensors, **narrow)
        assert (out.dtype, state.sums.dtype) == (dtype, torch.float32)
        assert (out.double() - want).abs().max() < most


def test_long_forgetting_does_not_overflow() -> None:
    """Only differences of the running decay are raised: 2,000 tokens of e^-3 each stay finite, and the same."""
    q, k, v = (torch.rand(1, 1, 2000, 2, dtype=f64) for _ in range(3))
    decay = torch.full((1, 1, 2000, 2), -3.0, dtype=f64)
    want, _ = linear.recurrent(q, k, v, rule="gated", decay=decay)
    out, _ = linear.chunked(q, k, v, rule="gated", decay=decay, size=128)
    assert torch.allclose(out, want, atol=1e-13)


def test_gradcheck() -> None:
    for rule in linear.RULES:
        for form in FORMS.values():
            _, asked, learned = call(rule, (2, 1, 1), b=1, t=3, f=2, v=2, fine=True)
            names = [name for name in ("decay", "beta") if name in asked]

            def core(*x: Tensor, form=form, asked=asked, names=names) -> Tensor:
                return form(*x[:3], **{**asked, **dict(zip(names, x[3:], strict=True))})[0]

            assert torch.autograd.gradcheck(core, learned)


def test_autocast_does_not_narrow_the_state() -> None:
    (q, k, v), asked, _ = call("gated_delta", (4, 2, 2), fine=True)
    tensors = [x.detach().float() for x in (q, k, v)]
    for form in FORMS.values():
        want, _ = form(*tensors, **asked)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            got, state = form(*tensors, **asked)
        assert torch.equal(got, want)
        assert state.sums.dtype == torch.float32
