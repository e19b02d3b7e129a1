"""Latent attention expanded = absorbed, values and gradients; both by the equations of the paper."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from manyheads.ops import latent, masks, rope, sdpa, softmax, tiled
from manyheads.spec.positions import Rope

FORMS = {"softmax": softmax.attention, "tiled": tiled.attention, "sdpa": sdpa.attention}
f64 = torch.float64


def parts(b: int, h: int, t: int, s: int, d: int, r: int, c: int, v: int) -> list[Tensor]:
    """q_nope, q_rope, latent, k_rope, w_k_up, w_v_up: nope, rope, latent and value sizes all different."""
    sizes = ((b, h, t, d), (b, h, t, r), (b, s, c), (b, s, r), (h, d, c), (h, v, c))
    return [torch.randn(size, dtype=f64) for size in sizes]


def run(core: object, tensors: list[Tensor], **asked: object) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in tensors]
    out = core(*leaves, **asked)
    weight = torch.sin(torch.arange(out.numel(), dtype=f64)).view(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


def differ(one: list[Tensor], other: list[Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True) if a.numel())


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "sizes", [(2, 3, 7, 7, 5, 4, 6, 8), (2, 3, 1, 9, 8, 2, 16, 3), (1, 4, 5, 11, 3, 6, 2, 7)], ids=str
)
def test_absorbed_is_expanded(sizes: tuple[int, ...], form: str) -> None:
    asked = {"scale": (sizes[4] + sizes[5]) ** -0.5, "visible": masks.causal(), "form": FORMS[form]}
    tensors = parts(*sizes)
    assert differ(run(latent.absorbed, tensors, **asked), run(latent.expanded, tensors, **asked)) < 1e-12


@settings(max_examples=30)
@given(sizes=st.tuples(st.integers(0, 2), *[st.integers(1, 5)] * 7), keys=st.integers(1, 4))
def test_absorbed_is_expanded_for_any_sizes(sizes: tuple[int, ...], keys: int) -> None:
    tensors, asked = parts(*sizes), {"scale": 0.4, "visible": masks.window(keys)}
    assert differ(run(latent.absorbed, tensors, **asked), run(latent.expanded, tensors, **asked)) < 1e-12


def test_by_the_equations() -> None:
    """k_h = [W_k c; r], v_h = W_v c, softmax(scale q_h k_h) v_h (arXiv 2405.04434, equations 9 to 19)."""
    q_nope, q_rope, kept, k_rope, up_k, up_v = parts(1, 2, 3, 4, 3, 2, 5, 6)
    got = latent.absorbed(q_nope, q_rope, kept, k_rope, up_k, up_v, scale=0.3)
    for h in range(2):
        keys = torch.cat(((up_k[h] @ kept[0].T).T, k_rope[0]), -1)
        weights = torch.softmax(0.3 * torch.cat((q_nope[0, h], q_rope[0, h]), -1) @ keys.T, -1)
        assert torch.allclose(got[0, h], weights @ (up_v[h] @ kept[0].T).T, atol=1e-14)


def test_a_cached_step_is_the_last_row() -> None:
    q_nope, q_rope, *kept = parts(2, 3, 6, 6, 5, 4, 7, 3)
    whole = latent.expanded(q_nope, q_rope, *kept, scale=0.3, visible=masks.causal())
    step = latent.absorbed(q_nope[:, :, -1:], q_rope[:, :, -1:], *kept, scale=0.3, visible=masks.causal())
    assert torch.allclose(step, whole[:, :, -1:], atol=1e-13)


def test_without_a_rotary_part() -> None:
    tensors = parts(2, 3, 4, 5, 6, 0, 2, 3)
    assert differ(run(latent.absorbed, tensors, scale=0.4), run(latent.expanded, tensors, scale=0.4)) < 1e-12


def test_o32_o95_only_the_rotary_part_turns() -> None:
    """nope 8, rope 4, value 5: turned rotary parts keep the absorption exact; turning the others breaks it."""
    q_nope, q_rope, kept, k_rope, up_k, up_v = parts(1, 2, 6, 6, 8, 4, 7, 5)
    cos, sin = rope.angles(torch.arange(6), Rope(4, layout="interleaved"), dtype=f64)
    q_rope = rope.apply(q_rope, cos, sin, "interleaved")
    k_rope = rope.apply(k_rope[:, None], cos, sin, "interleaved")[:, 0]
    tensors = (q_nope, q_rope, kept, k_rope, up_k, up_v)
    absorbed, expanded = (
        core(*tensors, scale=0.3, visible=masks.causal()) for core in (latent.absorbed, latent.expanded)
    )
    assert (absorbed - expanded).abs().max() < 1e-12

    cos, sin = rope.angles(torch.arange(6), Rope(8), dtype=f64)
    k, v = latent.expand(kept, k_rope, up_k, up_v)
    turned = rope.apply(torch.cat((q_nope, q_rope), -1), cos, sin), rope.apply(k, cos, sin)
    wrong = softmax.attention(*turned, v, scale=0.3, visible=masks.causal())
    assert (wrong - absorbed).abs().max() > 1e-2


def test_the_scale_is_of_the_head_not_of_the_latent() -> None:
    """Case O81's scale: nope 128, rope 64, latent 512 use 192. Here 3, 2 and 5: the caller's scale is taken as it is."""
    tensors = parts(1, 2, 3, 4, 3, 2, 5, 6)
    right, wrong = (latent.absorbed(*tensors, scale=size**-0.5) for size in (5, 7))
    assert (right - latent.expanded(*tensors, scale=5**-0.5)).abs().max() < 1e-13
    assert (right - wrong).abs().max() > 1e-3


def test_gradcheck() -> None:
    tensors = [x.requires_grad_() for x in parts(1, 2, 2, 3, 2, 2, 3, 2)]
    for core in (latent.absorbed, latent.expanded):
        assert torch.autograd.gradcheck(lambda *x, core=core: core(*x, scale=0.4, visible=masks.causal()), tensors)
