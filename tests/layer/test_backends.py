"""The layer through the decode kernels: the same as its plain twin with every cache, and left to others where it must be."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from manyheads.kernels import backend as kernel  # noqa: E402
from manyheads.layer.backends import select  # noqa: E402
from manyheads.layer.caches import cache_for  # noqa: E402
from manyheads.ops import masks  # noqa: E402
from manyheads.ops.call import AttentionCall  # noqa: E402
from manyheads.spec import AttentionSpec, Chunk, Rope, Window  # noqa: E402
from support.attention_layers import cached, kinds, layer, tokens  # noqa: E402

SCHEMES = (
    "gqa_partial_rope",
    "mqa_alibi",
    "alibi_window",
    "window",
    "chunk",
    "softcap",
    "sinks",
    "gated",
    "mla",
    "mla_no_rope",
)
LONG = {
    "heads": AttentionSpec.gqa(64, 32, 8, head_dim=16, positions=Rope(16)),
    "latents": AttentionSpec.mla(64, 16, rank=12, nope_dim=6, rope_dim=4, v_head_dim=5),
}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[AttentionCall]:
    """The calls that the kernels computed."""
    calls: list[AttentionCall] = []
    own = kernel.run
    monkeypatch.setattr(kernel, "run", lambda call: calls.append(call) or own(call))
    return calls


@pytest.mark.parametrize("name", SCHEMES)
def test_every_cache_as_its_plain_twin(name: str, ran: list[AttentionCall]) -> None:
    """A prompt of 3 tokens, then 1, 3, 1 and more: float32 sums of at most 24 products, in another order. Of a window, pieces
    longer than it; else of so few rows that one kernel takes them all."""
    more = 16 if name in ("window", "chunk") else 3
    made = layer(name, dtype=torch.float32)
    for kind in kinds(made.spec):
        caches = [cached(kind, made.spec, 2, capacity=40, dtype=torch.float32) for _ in range(2)]
        x = tokens(2, 8 + more, dtype=torch.float32)
        with torch.no_grad():
            for start, stop in ((0, 3), (3, 4), (4, 7), (7, 8), (8, 8 + more)):
                before = len(ran)
                found, expected = (
                    made(x[:, start:stop], cache=cache, backend=backend)
                    for cache, backend in zip(caches, ("kernel", "plain"), strict=True)
                )
                torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
                assert len(ran) == before + 1 or start == 0, (name, kind, start)  # nothing of MLA is cached at first


@pytest.mark.parametrize("kind", ["growing", "static"])
def test_padding_and_positions_of_ones_own(kind: str, ran: list[AttentionCall]) -> None:
    made = layer("gqa_partial_rope", dtype=torch.float32)
    keep = torch.arange(12)[None] >= torch.tensor([[0], [4]])
    places = (torch.arange(12)[None] - torch.tensor([[0], [4]])).clamp(min=0)
    x, out = tokens(2, 12, dtype=torch.float32), []
    for backend in ("kernel", "plain"):
        cache, parts = cached(kind, made.spec, 2, capacity=12, dtype=torch.float32), []
        with torch.no_grad():
            for start, stop in ((0, 8), (8, 9), (9, 12)):
                seen = keep if kind == "static" else keep[:, :stop]
                parts.append(
                    made(x[:, start:stop], cache=cache, backend=backend, visible=masks.padding(seen),
                         positions=places[:, start:stop])
                )  # fmt: skip
        out.append(torch.cat(parts, 1))
    torch.testing.assert_close(*out, rtol=1e-4, atol=1e-4)
    assert len(ran) == 3


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("kind", ["growing", "int8"])
def test_a_long_cache_is_read_by_the_kernels_unasked(name: str, kind: str, ran: list[AttentionCall]) -> None:
    """bfloat16 in and out: what is computed between is off by less than a rounding of the answer."""
    for dtype, bound in ((torch.float32, 1e-4), (torch.bfloat16, 2e-2)):
        made, outs = layer(LONG[name], dtype=dtype), []
        for parameter in made.parameters():
            parameter.data.mul_(0.3)  # logits of about 1, as in a trained layer: bfloat16 rounds them little
        for backend in ("auto", "plain"):
            cache = cache_for(made.spec, batch=1, dtype=dtype, kind=kind)
            draw = torch.Generator().manual_seed(0)
            made.keep(torch.randn(1, 9600, 64, generator=draw).to(dtype), cache=cache)
            with torch.inference_mode():
                outs.append(made(tokens(1, 1, 64, dtype=dtype), cache=cache, backend=backend).float())
        assert len(ran) == 1
        ran.clear()
        assert float((outs[0] - outs[1]).abs().max()) <= bound * float(outs[1].abs().max())


def test_latents_are_read_as_the_cache_keeps_them(ran: list[AttentionCall]) -> None:
    """Nothing is copied: the rows that the kernel reads are the cache's own memory."""
    made = layer(LONG["latents"], dtype=torch.float32)
    cache = cache_for(made.spec, batch=1)
    with torch.no_grad():
        made.keep(tokens(1, 9600, 64, dtype=torch.float32), cache=cache)
        made(tokens(1, 1, 64, dtype=torch.float32), cache=cache)
    (call,) = ran
    latents: Any = call.k
    assert latents.latents.rows.data_ptr() == cache.kept().keys.data_ptr()


def test_gradients_and_what_looks_at_every_operation_go_elsewhere(ran: list[AttentionCall]) -> None:
    made = layer(LONG["heads"], dtype=torch.float32)
    caches = [cache_for(made.spec, batch=1) for _ in range(3)]
    x, step = tokens(1, 1100, 64, dtype=torch.float32), tokens(1, 1, 64, dtype=torch.float32)
    with torch.no_grad():
        for cache in caches:
            made.keep(x, cache=cache)
        expected = made(step, cache=caches[0])
        assert len(ran) == 1
        with FlopCounterMode(display=False):  # a mode of torch's dispatcher, which would not see what a kernel does
            counted = made(step, cache=caches[1])
    assert len(ran) == 1
    learned = made(step, cache=caches[2])
    assert learned.grad_fn is not None
    assert len(ran) == 1
    for other in (counted, learned):
        torch.testing.assert_close(other, expected, rtol=1e-4, atol=1e-4)


def test_a_backend_that_cannot_leaves_the_call_to_the_others() -> None:
    q, k = torch.randn(1, 4, 1, 8), torch.randn(1, 2, 40, 8)
    call = AttentionCall.checked(q, k, k, scale=0.3, softcap=2.0, dropout=0.1)
    for name in ("kernel", "sdpa"):
        found = select(call, name)
        assert found.name == "plain"
        assert "no dropout" in found.reason
        assert "no softcap" in found.reason
    assert select(call, "tiled").name == "tiled"


def test_a_window_and_a_chunk_have_a_ring() -> None:
    """The parity test above runs over one."""
    for name, mask in (("window", Window), ("chunk", Chunk)):
        assert isinstance(layer(name).spec.mask, mask)
        assert "rolling" in kinds(layer(name).spec)
