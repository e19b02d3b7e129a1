"""No sequences, no queries, no keys: empty or zero outputs of the right shape, forward and backward (case O60)."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from manyheads.ops import masks  # noqa: E402
from manyheads.spec import Cross, State  # noqa: E402
from support.attention_layers import CACHED, SPECS, cached, kinds, layer, table_for, tokens  # noqa: E402


@pytest.mark.parametrize(("batch", "count"), [(0, 3), (2, 0), (0, 0)])
@pytest.mark.parametrize("name", SPECS)
def test_no_sequences_and_no_tokens(name: str, batch: int, count: int) -> None:
    made, x = layer(name), tokens(batch, count).requires_grad_()
    memory = (tokens(batch, 4, made.spec.source.d_memory),) if isinstance(made.spec.source, Cross) else ()
    y = made(x, *memory, **table_for(made.spec))
    assert y.shape == (batch, count, 20)
    y.sum().backward()
    assert x.grad.shape == x.shape
    assert all(p.grad is None or not p.grad.any() or name == "o" for name, p in made.named_parameters())
    if not isinstance(made.spec.kv, State):
        y, weights = made(x, *memory, **table_for(made.spec), need_weights="heads")
        keys = 4 if memory else count
        assert weights.shape == (batch, made.spec.num_heads, count, keys)


@pytest.mark.parametrize("backend", ["auto", "plain", "tiled", "sdpa"])
def test_a_memory_of_no_tokens_is_zero_context(backend: str) -> None:
    """The output is the bias of the output projection, and no gradient reaches the queries."""
    made, x = layer("cross"), tokens(2, 3).requires_grad_()
    y = made(x, tokens(2, 0, 13), backend=backend)
    torch.testing.assert_close(y, made.o_bias.expand(2, 3, 20))
    y.sum().backward()
    assert not x.grad.any()
    assert not made.q.grad.any()


@pytest.mark.parametrize("name", CACHED)
def test_a_cache_takes_no_tokens(name: str) -> None:
    made, x = layer(name), tokens(2, 5)
    memory = (tokens(2, 4, made.spec.source.d_memory),) if isinstance(made.spec.source, Cross) else ()
    more = table_for(made.spec)
    for kind in ["growing"] if memory else kinds(made.spec):
        cache = cached(kind, made.spec, 2)
        with torch.no_grad():
            parts = []
            for part in (slice(0, 0), slice(0, 3), slice(3, 3), slice(3, 5)):
                places = torch.arange(5)[part] if memory else None  # a memory's cache does not count queries
                parts.append(made(x[:, part], *memory, cache=cache, positions=places, **more))
            torch.testing.assert_close(torch.cat(parts, 1), made(x, *memory, **more), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("weights", ["none", "heads", "mean"])
@pytest.mark.parametrize("name", ["mha", "sinks", "softcap", "mqa_alibi", "mla", "gated"])
def test_a_query_that_sees_nothing_is_zero(name: str, weights: str) -> None:
    """Cases O01 to O04: the context of such a row is zero, its weights are zero, its gradients are zero, and no NaN."""
    made = layer(name)
    for backend in ("auto", "plain", *(() if weights != "none" else ("tiled", "sdpa"))):
        x = tokens(2, 5).requires_grad_()
        visible = torch.ones(2, 1, 5, 5, dtype=torch.bool)
        visible[0, :, 2] = False
        y = made(x, visible=visible, need_weights=weights, backend=backend)
        y, seen = y if isinstance(y, tuple) else (y, None)
        nothing = made.o_bias if made.spec.bias.o else torch.zeros(20, dtype=torch.float64)
        torch.testing.assert_close(y[0, 2], nothing)
        if seen is not None:
            assert not seen[0, ..., 2, :].any()
        made.zero_grad()
        y[0, 2].sum().backward()
        assert not x.grad.any()
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in made.parameters())


def test_lengths_of_zero_among_others() -> None:
    """Case O04: the sample of length 0 has zero context, the others are what they are alone."""
    made, x = layer("bidirectional"), tokens(3, 4)
    y = made(x, visible=masks.lengths(torch.tensor([4, 0, 2])))
    assert not y[1].any()
    torch.testing.assert_close(y[:1], made(x[:1]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(y[2:, :2], made(x[2:, :2]), rtol=1e-12, atol=1e-12)


def test_two_minimum_masks_in_half_precision() -> None:
    """Case O47: causal and padding together, in float16, without a NaN."""
    made = layer("mha", dtype=torch.float16)
    keep = torch.arange(5)[None] >= torch.tensor([[0], [3]])
    y = made(tokens(2, 5, dtype=torch.float16), visible=masks.padding(keep))
    assert torch.isfinite(y).all()


def test_padding_that_all_sequences_share_leaves_the_length_alone() -> None:
    """Case O11."""
    made, x = layer("bidirectional"), tokens(2, 6)
    keep = (torch.arange(6) < 4).expand(2, 6)
    for mode in (True, False):
        assert made.train(mode)(x, visible=masks.padding(keep)).shape == (2, 6, 20)
