"""Weights on request: probabilities, before dropout, a head or their mean; and nothing else changes by asking."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from manyheads.spec import AttentionSpec, Cross, State, Window  # noqa: E402
from support import rounding  # noqa: E402
from support.attention_layers import SPECS, cached, layer, table_for, tokens  # noqa: E402

SOFTMAX = [name for name, spec in SPECS.items() if not isinstance(spec.kv, State)]


@pytest.mark.parametrize("name", SOFTMAX)
def test_asking_changes_nothing_and_the_mean_is_the_mean(name: str) -> None:
    """Cases O01, O15, O16: a head axis, whose mean is the mean; the same output with and without."""
    made, x = layer(name), tokens(2, 6)
    memory = (tokens(2, 7, made.spec.source.d_memory),) if isinstance(made.spec.source, Cross) else ()
    more = table_for(made.spec)
    y = made(x, *memory, **more)
    by_head, heads = made(x, *memory, need_weights="heads", **more)
    by_mean, mean = made(x, *memory, need_weights="mean", **more)
    assert heads.shape == (2, made.spec.num_heads, 6, 7 if memory else 6)
    torch.testing.assert_close(heads.mean(1), mean)
    torch.testing.assert_close(by_head, y, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(by_mean, y, rtol=1e-12, atol=1e-12)
    if not made.spec.sinks:
        torch.testing.assert_close(heads.sum(-1), torch.ones(2, made.spec.num_heads, 6, dtype=torch.float64))


def test_they_are_taken_before_dropout() -> None:
    """Case O17: rows sum to 1 while training too, and the output is what the dropped ones give, scaled up."""
    made, x = layer("mha").train(), tokens(2, 6)
    _, plain = made(x, need_weights="heads")
    torch.manual_seed(0)
    y, weights = made(x, need_weights="heads", dropout=0.5)
    torch.testing.assert_close(weights, plain)
    assert not torch.allclose(y, made(x))


@pytest.mark.parametrize("backend", ["auto", "plain", "tiled", "sdpa"])
def test_dropout_is_right_on_average_and_repeatable(backend: str) -> None:
    made, x = layer("mha"), tokens(1, 6)
    exact = made(x)
    torch.manual_seed(0)
    with torch.no_grad():
        drawn = torch.stack([made(x, dropout=0.3, backend=backend) for _ in range(3000)])
        torch.manual_seed(0)
        torch.testing.assert_close(made(x, dropout=0.3, backend=backend), drawn[0])
    error = (drawn.mean(0) - exact).abs() / (drawn.std(0) / 3000**0.5)
    assert error.max() < 5  # standard errors, over 120 numbers


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("weights", ["none", "heads", "mean"])
@pytest.mark.parametrize("name", ["mha", "gqa_partial_rope", "mqa_alibi", "softcap", "sinks", "mla", "window", "chunk"])
def test_no_path_sees_the_future(name: str, weights: str, dropout: float) -> None:
    """Case O13: whatever comes after token t, output t stays."""
    made, x = layer(name), tokens(2, 8)
    for backend in ("auto", "plain") if weights != "none" else ("auto", "plain", "tiled", "sdpa"):
        other = x.clone()
        other[:, 5:] += 1
        found = []
        for inputs in (x, other):
            torch.manual_seed(0)
            y = made(inputs, need_weights=weights, dropout=dropout, backend=backend)
            found.append(y if isinstance(y, tuple) else (y,))
        for one, two in zip(*found, strict=True):
            before = (slice(None), slice(0, 5)) if one.dim() == 3 else (slice(None), slice(None), slice(0, 5))
            torch.testing.assert_close(one[before], two[before], rtol=1e-12, atol=1e-12)
        if weights != "none":
            assert not found[0][1].triu(1).any()


def test_weights_over_a_cache_are_over_what_it_returned() -> None:
    x = tokens(2, 9)
    for kind, keys in (("growing", 9), ("static", 40), ("rolling", 4)):
        made = layer("window")
        cache = cached(kind, made.spec, 2)
        made(x[:, :8], cache=cache)
        y, weights = made(x[:, 8:], cache=cache, need_weights="heads")
        assert weights.shape == (2, 6, 1, keys)
        whole, all_weights = made(x, need_weights="heads")
        torch.testing.assert_close(y, whole[:, 8:], rtol=1e-12, atol=1e-12)
        there = all_weights[:, :, 8:]
        if kind == "rolling":  # the window's tokens, in their order
            there = there[..., 5:]
        torch.testing.assert_close(weights[..., : there.shape[-1]], there, rtol=1e-12, atol=1e-12)


def test_no_matrix_of_all_pairs_unless_asked_for() -> None:
    """Case O18: 2 heads over 16,384 tokens in a window; a row a query would be 2 GiB in float32, all pairs at once."""
    spec = AttentionSpec.gqa(16, 2, 1, head_dim=8, mask=Window(16))
    made, x = layer(spec, dtype=torch.float32), tokens(1, 16384, 16, dtype=torch.float32)
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            largest = max(
                [largest, *(o.numel() for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, torch.Tensor))]
            )
            return out

    with torch.no_grad(), Watch():
        made(x)
    assert largest < 2**24


def test_precision_of_narrow_types() -> None:
    """Case O48: bfloat16 within a hundredth of float64; rows of 512 keys sum to 1 but for the rounding of each weight.

    A weight p is off by at most u p, u = 2^-8, evenly: a row by u sqrt(sum p^2 / 3) as a rule, of which six times is allowed
    here, and by u at worst. Sums in bfloat16 itself would stop growing at 1/2.
    """
    spec = AttentionSpec.mha(32, 2)
    made, x = layer(spec, dtype=torch.bfloat16), tokens(1, 512, 32, dtype=torch.bfloat16)
    for parameter in made.parameters():
        parameter.data.mul_(0.5)
    wide = layer(spec)
    wide.load({name: value.double() for name, value in made.state_dict().items()})
    y, weights = made(x, need_weights="heads")
    exact, exact_weights = wide(x.double(), need_weights="heads")
    assert (y.double() - exact).abs().max() < 1e-2 * exact.abs().max()
    allowed = rounding.unit(torch.bfloat16) * (6 * (exact_weights.square().sum(-1) / 3).sqrt()).clamp(max=1)
    assert ((weights.double().sum(-1) - 1).abs() <= allowed).all()
