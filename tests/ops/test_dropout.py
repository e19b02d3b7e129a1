"""Dropout on the probabilities: what is kept is scaled, the share is right, tiles choose as the whole does."""

from __future__ import annotations

import pytest
import torch

from manyheads.ops import dropout, masks, softmax, tiled
from manyheads.ops.predicates import grid


def tokens(n: int = 48) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values are the unit matrix, so that the output is the matrix of probabilities after dropout."""
    q, k = (torch.randn(2, 4, n, 6, dtype=torch.float64) for _ in range(2))
    return q, k, torch.eye(n, dtype=torch.float64).expand(2, 4, n, n)


@pytest.mark.parametrize("form", [softmax.attention, tiled.attention])
def test_each_probability_is_dropped_or_scaled(form: object) -> None:
    q, k, v = tokens()
    asked = {"scale": 0.4, "visible": masks.causal()}
    _, weights = softmax.attention(q, k, v, **asked, return_weights=True)
    out = form(q, k, v, **asked, dropout=0.25)
    visible = torch.ones(48, 48, dtype=torch.bool).tril().expand(2, 4, 48, 48)
    kept = out != 0
    assert torch.allclose(out[kept], weights[kept] / 0.75, rtol=1e-12)
    assert not out[~visible].any()
    # 9,408 draws: four standard deviations are 0.018
    assert abs(1 - kept[visible].double().mean().item() - 0.25) < 0.018


def test_weights_are_returned_before_dropout() -> None:
    """Case O17: row sums of 1 in training too."""
    q, k, v = tokens()
    _, weights = softmax.attention(q, k, v, scale=0.4, dropout=0.5, return_weights=True)
    assert torch.allclose(weights.sum(-1), torch.ones(2, 4, 48, dtype=torch.float64), atol=1e-14)


def test_the_seed_decides() -> None:
    q, k, v = tokens()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(softmax.attention(q, k, v, scale=0.4, dropout=0.5))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("tile", [5, 16, 300])
def test_tiles_choose_as_the_whole_does(tile: int) -> None:
    q, k, v = (x.requires_grad_() for x in tokens())
    asked = {"scale": 0.4, "visible": masks.causal(), "dropout": 0.3, "sinks": torch.randn(4, dtype=torch.float64)}
    found = []
    for form, more in ((softmax.attention, {}), (tiled.attention, {"tile": tile})):
        torch.manual_seed(7)
        out = form(q, k, v, **asked, **more)
        weight = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
        found.append([out, *torch.autograd.grad((out * weight).sum(), (q, k, v))])
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(*found, strict=True))


def test_choices_are_independent_across_rows_heads_and_sequences() -> None:
    """Pairs of neighbours on every axis agree half of the time; four standard deviations of 65,536 draws are 0.008."""
    at = grid(batch=4, heads=4, rows=slice(0, 64), columns=slice(0, 64), offset=0, device="cpu")
    kept = dropout.factor(torch.tensor([3, 5]), at, share=0.5, dtype=torch.float64) > 0
    for axis in range(4):
        agree = (kept == kept.roll(1, axis)).double().mean().item()
        assert abs(agree - 0.5) < 0.008
    assert abs(kept.double().mean().item() - 0.5) < 0.008
