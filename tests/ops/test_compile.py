"""Case O64: every form compiles as one graph, forward and backward, and computes the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from manyheads.ops import bias, latent, linear, masks, norm, rope, sdpa, softmax, tiled
from manyheads.spec.positions import Rope
from support import rounding

f64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.use_deterministic_algorithms(False)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def same(call: Callable[..., Tensor], *tensors: Tensor) -> None:
    leaves = [x.requires_grad_() for x in tensors]
    found = []
    for function in (torch.compile(call, fullgraph=True, backend="aot_eager"), call):
        torch.manual_seed(1)
        out = function(*leaves)
        weight = torch.sin(torch.arange(out.numel(), dtype=out.dtype)).view(out.shape)
        found.append([out, *torch.autograd.grad((out * weight).sum(), leaves)])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*found, strict=True))


KEEP = torch.tensor([[False, True, True, True, True, True, True], [True] * 7])
ASKED = {
    "causal": {"visible": masks.causal()},
    "window and padding": {"visible": masks.window(3) & masks.padding(KEEP)},
    "dense": {"visible": torch.rand(2, 4, 5, 7) < 0.5},
    "lengths and offsets": {
        "visible": masks.causal() & masks.lengths(torch.tensor([3, 7])),
        "offset": torch.tensor([0, 2]),
    },
    "alibi": {"visible": masks.causal(), "bias": bias.Alibi(bias.alibi_slopes(4))},
    "bias, cap and sinks": {"bias": torch.randn(5, 7, dtype=f64), "softcap": 2.0, "sinks": torch.randn(4, dtype=f64)},
    "dropout": {"dropout": 0.3},
}


@pytest.mark.parametrize("form", [softmax.attention, partial(tiled.attention, tile=4), sdpa.attention])
@pytest.mark.parametrize("name", ASKED)
def test_o64_softmax_attention(name: str, form: Callable[..., Tensor]) -> None:
    q, k, v = torch.randn(2, 4, 5, 6, dtype=f64), torch.randn(2, 2, 7, 6, dtype=f64), torch.randn(2, 2, 7, 3, dtype=f64)
    same(lambda q, k, v: form(q, k, v, scale=0.4, **ASKED[name]), q, k, v)


def test_o64_masks_made_inside_the_graph() -> None:
    q, k, v = torch.randn(2, 4, 5, 6, dtype=f64), torch.randn(2, 2, 7, 6, dtype=f64), torch.randn(2, 2, 7, 3, dtype=f64)

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen = (masks.window(3) | masks.opposite(masks.band(4))) & masks.padding(KEEP)
        return tiled.attention(q, k, v, scale=0.4, visible=seen, tile=4) + sdpa.attention(
            q, k, v, scale=0.4, visible=seen
        )

    same(call, q, k, v)


@pytest.mark.parametrize("core", [latent.expanded, latent.absorbed])
def test_o64_latent(core: Callable[..., Tensor]) -> None:
    sizes = ((2, 3, 4, 5), (2, 3, 4, 2), (2, 6, 7), (2, 6, 2), (3, 5, 7), (3, 3, 7))
    same(
        partial(core, scale=0.4, visible=masks.causal(), form=sdpa.attention),
        *(torch.randn(s, dtype=f64) for s in sizes),
    )


@pytest.mark.parametrize("form", [linear.recurrent, linear.quadratic, partial(linear.chunked, size=2)])
def test_o64_linear(form: Callable[..., tuple[Tensor, linear.LinearState]]) -> None:
    q, k, v = torch.rand(2, 4, 5, 3, dtype=f64), torch.rand(2, 2, 5, 3, dtype=f64), torch.randn(2, 2, 5, 2, dtype=f64)
    keep = torch.tensor([[False, True, True, True, True], [True] * 5])
    decay, beta = -torch.rand(2, 2, 5, dtype=f64), torch.rand(2, 2, 5, dtype=f64)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        mapped = linear.features(q, "elu+1"), linear.features(k, "elu+1")
        return form(*mapped, v, normalised=True, keep=keep)[0]

    def gated(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return form(q, k, v, rule="gated_delta", decay=decay, beta=beta)[0]

    same(plain, q, k, v)
    same(gated, q, k, v, decay, beta)


def test_o64_positions_and_norms() -> None:
    x, gain, described = torch.randn(2, 3, 5, 8, dtype=f64), torch.randn(8, dtype=f64), Rope(6, layout="interleaved")

    def call(x: Tensor, gain: Tensor) -> Tensor:
        cos, sin = rope.angles(torch.arange(5, device=x.device), described, dtype=x.dtype)
        return rope.apply(norm.rms(x, gain, eps=1e-6, gain="1+w"), cos, sin, "interleaved")

    same(call, x, gain)


@pytest.mark.parametrize("form", [softmax.attention, tiled.attention, sdpa.attention])
def test_o64_a_growing_cache_is_two_graphs_and_a_static_one_is_one(form: Callable[..., Tensor]) -> None:
    """One for the first length and one for all others; none anew where the capacity stands and the offset is a tensor."""
    from torch._dynamo.testing import CompileCounterWithBackend

    def grown(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return form(q, k, v, scale=0.4, visible=masks.causal())

    def static(q: Tensor, k: Tensor, v: Tensor, at: Tensor) -> Tensor:
        return form(q, k, v, scale=0.4, visible=masks.causal(), offset=at)

    q, k, v = torch.randn(2, 4, 1, 6), torch.randn(2, 2, 24, 6), torch.randn(2, 2, 24, 3)
    graphs = CompileCounterWithBackend("aot_eager")
    step = torch.compile(grown, fullgraph=True, backend=graphs)
    whole = torch.compile(static, fullgraph=True, backend=graphs)
    for length in range(8, 24):
        exact = rounding.attention(q, k[:, :, :length], v[:, :, :length], scale=0.4)
        assert exact.holds(step(q, k[:, :, :length], v[:, :, :length]))
    assert graphs.frame_count == 2
    for length in range(8, 24):
        exact = rounding.attention(q, k[:, :, :length], v[:, :, :length], scale=0.4)
        assert exact.holds(whole(q, k, v, torch.tensor(length - 1)))
    assert graphs.frame_count == 3
