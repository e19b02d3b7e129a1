"""torch.compile of a model under "manyheads": no more graphs than with torch's own attention and cache, and the same answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch._dynamo.testing import CompileCounter
from transformers import DynamicCache, StaticCache

import manyheads
from manyheads.layer.dispatch import attend_last
from manyheads.ops import masks, softmax
from manyheads.ops.bias import Alibi, alibi_slopes
from manyheads.ops.call import AttentionCall
from support import rounding
from support.sweeps import WHOLE
from support.tiny_transformers import build

CACHES: dict[str, Callable[[Any], Any]] = {
    "dynamic": lambda model: DynamicCache(config=model.config),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=640),
    "ours": manyheads.cache,
    "bf16": lambda model: manyheads.cache(model, dtype="bf16"),
    "int8": lambda model: manyheads.cache(model, dtype="int8"),
}
IDS = torch.randint(3, 90, (2, 640), generator=torch.Generator().manual_seed(5))


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    manyheads.enable()
    yield
    manyheads.disable()
    torch._dynamo.reset()


# One layer is as many graphs as several; gemma2 alternates two kinds.
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {"num_hidden_layers": 1}, "mistral": {"num_hidden_layers": 1, "sliding_window": 4},
    "gemma2": {"num_hidden_layers": 2, "sliding_window": 4},
    "deepseek_v3": {"num_hidden_layers": 1, "first_k_dense_replace": 1},
}  # fmt: skip
THEIRS = {"llama": "sdpa", "mistral": "sdpa", "gemma2": "eager", "deepseek_v3": "sdpa"}


# Each model once and each cache once; every pair of them in a sweep.
STEPS = (
    list(product(CHANGES, ("dynamic", "ours", "int8")))
    if WHOLE
    else [("llama", "int8"), ("mistral", "dynamic"), ("gemma2", "ours"), ("deepseek_v3", "ours")]
)


def small(name: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    return build(name, dtype=dtype, max_position_embeddings=1024, **CHANGES[name])


def read(model: Any, cache: str, sizes: tuple[int, ...], *, eagerly: int = 1) -> tuple[torch.Tensor, int]:
    """The logits of pieces of these sizes, one after the other into one cache, all but the first `eagerly` of them compiled;
    and the number of graphs."""
    torch._dynamo.reset()
    counter, kept, at, found = CompileCounter(), CACHES[cache](model), 0, []
    compiled = torch.compile(model.forward, backend=counter)
    with torch.no_grad():
        for number, size in enumerate(sizes):
            run = model if number < eagerly else compiled
            found.append(run(IDS[:, at : at + size], cache=kept, use_cache=True).logits)
            at += size
    return torch.cat(found, 1), counter.frame_count


@lru_cache
def most(name: str, dtype: torch.dtype, sizes: tuple[int, ...], eagerly: int = 1) -> int:
    """Graphs with transformers' own attention and cache."""
    model = small(name, dtype)
    model.set_attn_implementation(THEIRS[name])
    return read(model, "dynamic", sizes, eagerly=eagerly)[1]


@lru_cache
def whole(name: str, tokens: int) -> rounding.Exact:
    return rounding.model(small(name), {"input_ids": IDS[:, :tokens]}, use_cache=False)


def answers(name: str, cache: str, sizes: tuple[int, ...], eagerly: int = 1) -> None:
    """As many graphs as theirs, and the answers of the whole text, as far as the cache's format holds them."""
    model = small(name)
    model.set_attn_implementation("manyheads")
    found, graphs = read(model, cache, sizes, eagerly=eagerly)
    assert graphs <= most(name, torch.float32, sizes, eagerly)
    exact = whole(name, sum(sizes))
    if cache in ("bf16", "int8"):  # what eight bits move, in a graph and without one
        assert float((found - exact.value).square().mean().sqrt()) < 0.12 * float(exact.value.std())
    else:
        assert exact.holds(found)


@pytest.mark.parametrize(("name", "cache"), STEPS)
def test_step_by_step(name: str, cache: str) -> None:
    """Windows that fill up on the way, softcaps, latents."""
    answers(name, cache, (2, 1, 1, 1, 1, 1))


@pytest.mark.parametrize("cache", ["static", "bf16"])
def test_other_caches(cache: str) -> None:
    answers("llama", cache, (2, 1, 1, 1))


@pytest.mark.parametrize("cache", ["dynamic", "static", "ours"])
def test_over_the_length_from_which_the_kernel_is_quicker(cache: str) -> None:
    """512 keys in float32: a graph does not choose by it, and what it calls does."""
    answers("llama", cache, (510, 1, 1, 1, 1))


@pytest.mark.parametrize(("cache", "first"), [("dynamic", 6), ("int8", 6), ("dynamic", 600), ("ours", 600)])
def test_in_bfloat16(cache: str, first: int) -> None:
    model, sizes = small("llama", torch.bfloat16), (first, 1, 1, 1)
    model.set_attn_implementation("manyheads")
    assert read(model, cache, sizes)[1] <= most("llama", torch.bfloat16, sizes)


@pytest.mark.parametrize("cache", ["ours", "int8"])
def test_pieces_of_any_size(cache: str) -> None:
    """From the first one on in graphs, over the 16 queries that the kernel takes at most; int8 is dequantized there."""
    answers("llama", cache, (4, 5, 17), 0)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_prompts_of_any_length(name: str) -> None:
    found = []
    for attention in (THEIRS[name], "manyheads"):
        model = small(name)
        model.set_attn_implementation(attention)
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(model.forward, backend=counter)
        with torch.no_grad():
            for length in (5, 9, 16, 17, 30):
                logits = compiled(IDS[:, :length], use_cache=False).logits
        found.append(counter.frame_count)
        assert whole(name, 30).holds(logits)
    assert found[1] <= found[0]


@pytest.mark.parametrize("dtype", ["model", "int8"])
def test_graph_and_no_graph_share_a_cache(dtype: str) -> None:
    """What a graph has appended is gone on with outside of it, and the other way round."""
    model = small()
    model.set_attn_implementation("manyheads")
    exact, compiled = whole("llama", 8), torch.compile(model.forward, backend="aot_eager")
    cache, found = manyheads.cache(model, dtype=dtype), []
    with torch.no_grad():
        for at in range(0, 8, 2):
            found.append(model(IDS[:, at : at + 1], cache=cache).logits)
            found.append(compiled(IDS[:, at + 1 : at + 2], cache=cache).logits)
    assert cache.get_seq_length() == 8
    error = (torch.cat(found, 1) - exact.value).square().mean().sqrt()
    assert exact.holds(torch.cat(found, 1)) if dtype == "model" else error < 0.12 * exact.value.std()


@pytest.mark.parametrize(
    ("visible", "bias"),
    [
        (None, None), (masks.causal(), None), (masks.window(3), None), (masks.causal() & masks.band(4), None),
        (torch.arange(9) >= 2, None), (None, Alibi(alibi_slopes(6))), (masks.window(5), torch.randn(1, 6, 1, 9)),
    ],
)  # fmt: skip
def test_one_query_in_a_graph_is_asked_what_was_asked_outside(visible: Any, bias: Any) -> None:
    """Every mask and bias reaches the operator; so do softcap and sinks."""
    draw = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(2, heads, count, 4, generator=draw) for heads, count in ((6, 1), (2, 9), (2, 9)))
    if isinstance(visible, torch.Tensor):
        visible = visible[None, None, None]
    sinks = torch.randn(6, generator=draw)
    asked = AttentionCall.checked(q, k, v, scale=0.5, visible=visible, bias=bias, softcap=3.0, sinks=sinks)
    options = {**asked.options, "bias": Alibi(bias.slopes.double()) if isinstance(bias, Alibi) else bias}
    exact = rounding.evaluated(lambda: softmax.attention(q.double(), k.double(), v.double(), **options))
    assert exact.holds(attend_last(asked))
