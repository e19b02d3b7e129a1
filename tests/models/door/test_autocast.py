"""Models under torch.autocast: the door casts queries, keys and values as torch's own attention does, whatever they are kept as."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import DynamicCache
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

import manyheads
from manyheads.models.door.door import attend
from support import rounding
from support.tiny_transformers import build, inputs

# Every expert takes part: which of them are asked is decided by comparisons, which rounding may turn.
CHANGES: dict[str, dict[str, Any]] = {
    "llama": {}, "gpt_oss": {"num_local_experts": 2, "num_experts_per_tok": 2}, "deepseek_v2": {"first_k_dense_replace": 3},
    "deepseek_v3": {"first_k_dense_replace": 3}, "minicpm3": {},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _enabled() -> Iterator[None]:
    manyheads.enable()
    yield
    manyheads.disable()


def written(model: Any, ids: torch.Tensor, cache: Any, sizes: list[int], dtype: torch.dtype) -> torch.Tensor:
    found = []
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype):
        for part in ids.split(sizes, 1):
            found.append(model(part, cache=cache, use_cache=True).logits)
    return torch.cat(found, 1)


@pytest.mark.filterwarnings("ignore:manyheads. an int8 cache of latents")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CHANGES)
def test_prompts_and_steps(name: str, dtype: torch.dtype) -> None:
    """A prompt that is too long for the kernel, and steps that latents are absorbed for."""
    model, ids = build(name, **CHANGES[name]), inputs(name, tokens=20)["input_ids"]
    exact = rounding.model(model, {"input_ids": ids}, dtype=dtype, use_cache=False)
    model.set_attn_implementation("manyheads")
    for cache in (DynamicCache(config=model.config), manyheads.cache(model), manyheads.cache(model, dtype="fp32")):
        assert exact.holds(written(model, ids, cache, [17, 1, 2], dtype))
    found = written(model, ids, manyheads.cache(model, dtype="int8"), [17, 1, 2], dtype)
    assert (found - exact.value).square().mean().sqrt() < 0.12 * exact.value.std()


def test_sinks_are_nearer_to_float64_than_the_models_own_attention() -> None:
    """gpt-oss' eager attention rounds its logits and probabilities to 16 bits under autocast, torch's and ours add in float32:
    of its own queries, keys and values, ours is off by less. Where the two write other tokens, neither copies the other."""
    theirs = ours = 0.0
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, heads, 12, 16, generator=draw) for heads in (4, 2, 2))
        module, sinks = torch.nn.Module(), torch.randn(4, generator=draw)
        module.num_key_value_groups, module.is_causal, module.sinks = 2, True, sinks
        seen = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
        added = torch.zeros(1, 1, 12, 12).masked_fill(~seen, torch.finfo(torch.float32).min)
        exact = rounding.attention(q, k, v, scale=0.25, visible=seen, sinks=sinks, dtype=torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            eager, _ = eager_attention_forward(module, q, k, v, added, 0.25)
            found, _ = attend(module, q, k, v, seen, scaling=0.25, s_aux=sinks)
        assert found.dtype == eager.dtype == torch.bfloat16
        theirs += float((eager.transpose(1, 2).double() - exact.value).square().mean())
        ours += float((found.transpose(1, 2).double() - exact.value).square().mean())
    assert ours < theirs


@pytest.mark.parametrize("queries", [1, 12, 30])
def test_it_is_what_torchs_own_attention_takes(queries: int) -> None:
    """What torch's function rounds its float32 arguments to under autocast is what the door is off by, and no more."""
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, heads, count, 16, generator=draw) for heads, count in ((4, queries), (2, 30), (2, 30)))
    seen = torch.ones(queries, 30, dtype=torch.bool).tril(30 - queries)[None, None]
    rounded = [x.bfloat16().double() for x in (q, k, v)]
    exact = rounding.attention(*rounded, scale=0.25, visible=seen)  # in float32 inside; the answer is rounded once
    module = torch.nn.Module()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = attend(module, q, k, v, seen, scaling=0.25)
    one = exact.value.abs().max() * rounding.unit(torch.bfloat16)
    assert (found.transpose(1, 2).double() - exact.value).abs().max() <= exact.error + 2 * one
