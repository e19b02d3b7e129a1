"""Writes docs/layer-decode.md: one new token through `Attention(spec)` with a cache, beside the kernel that it calls.

    python benchmarks/layer_decode.py [SECONDS] > docs/layer-decode.md        by default 60 a row, at least 15 rounds each

What is timed takes turns in a random order, on layers and caches that are changed from round to round, so that they come from
memory and whatever else the machine does falls on all of them. A round gives ratios; stated are their medians and quartiles.
Where the layer does not give what its plain twin gives nothing is timed and the exit status is 2; it is 1 where the
attention of a layer, or the whole of it, takes more than 1.1 times the kernel, or the kernel and the products.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn.functional import linear

from manyheads.kernels import attend, project
from manyheads.layer import Attention, heads, latent
from manyheads.layer.caches import cache_for
from manyheads.layer.caches.base import part_shapes
from manyheads.spec import AttentionSpec, Latent, Rope

CACHED, COPIES, LEAST_ROUNDS, MOST_RATIO = 8192, 3, 15, 1.1
DTYPE = torch.bfloat16
ROWS = {
    "32/8 heads x 128": (AttentionSpec.gqa(4096, 32, 8, head_dim=128, positions=Rope(128)), "growing"),
    "32/8 heads x 128, int8 cache": (AttentionSpec.gqa(4096, 32, 8, head_dim=128, positions=Rope(128)), "int8"),
    "MLA, 16 heads over 512 + 64": (
        AttentionSpec.mla(2048, 16, rank=512, nope_dim=128, rope_dim=64, v_head_dim=128), "growing"),
}  # fmt: skip
Step = Callable[[], Any]

HEAD = """\
# One new token through the layer

`Attention(spec)` with a cache of {cached:,} tokens, bfloat16, batch 1, beside the decode kernel alone on the same cache.
"attention" is the layer without its products: checks, norms, the rotary embedding, the cache, the choice of a backend and the
kernel. "whole layer" has the products, too, and is held against the kernel and those products alone. "transformers" is the same
layer of a transformers model (Llama, DeepSeek-V3) under `attn_implementation="manyheads"` with our cache; a ratio below 1 says
that `Attention` is faster. Medians of rounds in which all took turns; in brackets the quartiles. An int8 cache rotates and rounds
each new key and value, in small steps that the kernel alone does not take and transformers' layer takes, too.

Written by `python benchmarks/layer_decode.py`, which writes nothing where the layer and its plain twin differ.
"""


def drawn(count: int) -> Tensor:
    """Random numbers, the same again and again: only that they are none of each other's neighbours matters."""
    some = torch.randn(2**16 + 1).to(DTYPE)
    return some.repeat(count // len(some) + 1)[:count]


class Copy:
    """A layer of its own, its cache of CACHED tokens, and the same weights and tokens in transformers' layer."""

    def __init__(self, spec: AttentionSpec, kind: str) -> None:
        self.layer = Attention(spec, dtype=DTYPE, device="meta").to_empty(device="cpu").eval()
        for parameter in self.layer.parameters():
            parameter.copy_(drawn(parameter.numel()).view(parameter.shape) * spec.d_model**-0.5)
        self.cache = cache_for(spec, batch=1, dtype=DTYPE, kind=kind)
        self.x = torch.randn(1, 1, spec.d_model).to(DTYPE)
        (many, width), (_, v_width) = part_shapes(spec)
        for _ in range(CACHED // 1024):
            new = (drawn(many * 1024 * size).view(1, many, 1024, size) for size in (width, v_width))
            self.cache.update(*new)
        self.layer(self.x, cache=self.cache)  # room for one more, from now on
        self.back()

    def back(self) -> None:
        """Without the newest token."""
        self.cache.crop(-1)

    def step(self, **how: Any) -> Tensor:
        """One new token."""
        out = self.layer(self.x, cache=self.cache, **how)
        assert isinstance(out, Tensor)
        return out


@contextmanager
def without_products(copy: Copy) -> Iterator[None]:
    """The layer's products give what they gave the last time; the last one gives what it is given."""
    known: dict[int, Tensor] = {}
    own_projected, own_linear = heads.projected, linear

    def remembered(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
            if id(weight) not in known:
                known[id(weight)] = make(x, weight, bias)
            return known[id(weight)]

        return product

    with (
        mock.patch.object(heads, "projected", remembered(own_projected)),
        mock.patch.object(latent, "projected", remembered(own_projected)),
        mock.patch.object(latent, "linear", remembered(own_linear)),
        mock.patch.object(heads, "joined", lambda mixed, *_: mixed),
    ):
        copy.step()
        copy.back()
        yield


def kernel(copy: Copy) -> Step:
    """The kernels that the layer calls, on what its cache holds."""
    spec, held = copy.layer.spec, copy.cache.kept()
    seen = attend.Keys.causal(1, 1, held.keys.shape[2])
    draw = torch.randn(1, spec.num_heads, 1, spec.kv.head_dim)
    if isinstance(spec.kv, Latent):
        nope, rotary = draw.to(DTYPE).split((spec.kv.nope_dim, spec.kv.rope_dim), -1)
        rows = held.keys.as_strided((1, 1, CACHED, spec.kv.rank + spec.kv.rope_dim), held.keys.stride())

        def absorbed() -> Tensor:
            q = torch.cat((project.times(nope[0], copy.layer.k_up), rotary[0].float()), -1)[None]
            mixed = attend.decode(q, rows, rows[..., : spec.kv.rank], seen, scale=spec.scale)
            return project.times_transposed(mixed[0], copy.layer.v_up)

        return absorbed
    numbers = [getattr(x, "numbers", x) for x in (held.keys, held.values)]
    scales = [getattr(x, "scales", None) for x in (held.keys, held.values)]
    q = draw.to(DTYPE)
    return lambda: attend.decode(q, *numbers, seen, scale=spec.scale, k_scale=scales[0], v_scale=scales[1])


def products(copy: Copy) -> Step:
    """The layer's products alone."""
    layer, spec = copy.layer, copy.layer.spec
    mixed = torch.randn(1, spec.num_heads, 1, spec.kv.v_head_dim).to(DTYPE)
    if isinstance(spec.kv, Latent):
        return lambda: (
            heads.projected(copy.x, layer.q), linear(copy.x, layer.kv_down), linear(copy.x, layer.k_rope),
            heads.joined(mixed, layer.o, None),
        )  # fmt: skip
    weights = (layer.q, layer.k, layer.v)
    return lambda: (*(heads.projected(copy.x, each) for each in weights), heads.joined(mixed, layer.o, None))


def theirs(copy: Copy, kind: str) -> Step:
    """The same layer of a transformers model with these weights, its cache as long, in the same format."""
    from transformers import DeepseekV3Config, LlamaConfig
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention
    from transformers.models.llama.modeling_llama import LlamaAttention

    from manyheads.models.caches.make import InPlaceCache
    from manyheads.models.door import absorbed_mla
    from manyheads.models.door.door import NAME, register_once

    register_once()
    spec = copy.layer.spec
    shape = {"hidden_size": spec.d_model, "num_attention_heads": spec.num_heads, "num_hidden_layers": 1}
    if isinstance(spec.kv, Latent):
        config: Any = DeepseekV3Config(
            **shape, num_key_value_heads=spec.num_heads, kv_lora_rank=spec.kv.rank, q_lora_rank=None,
            qk_nope_head_dim=spec.kv.nope_dim, qk_rope_head_dim=spec.kv.rope_dim, v_head_dim=spec.kv.v_head_dim,
        )  # fmt: skip
    else:
        config = LlamaConfig(**shape, num_key_value_heads=spec.kv.num_kv_heads, head_dim=spec.kv.head_dim)  # type: ignore[union-attr]
    config._attn_implementation = NAME
    with torch.device("meta"):
        made: Any = (DeepseekV3Attention if isinstance(spec.kv, Latent) else LlamaAttention)(config, 0).to(DTYPE).eval()
    layer = copy.layer
    weights = {"q_proj": layer.q.flatten(0, 1), "o_proj": layer.o.flatten(1)}
    if isinstance(spec.kv, Latent):
        weights["kv_a_proj_with_mqa"] = torch.cat((layer.kv_down, layer.k_rope))
        weights["kv_a_layernorm"] = layer.kv_down_norm_weight
        weights["kv_b_proj"] = torch.cat((layer.k_up, layer.v_up), 1).flatten(0, 1)
    else:
        weights |= {"k_proj": layer.k.flatten(0, 1), "v_proj": layer.v.flatten(0, 1)}
    for part, weight in weights.items():
        getattr(made, part).weight = torch.nn.Parameter(weight, requires_grad=False)
    if isinstance(spec.kv, Latent):
        absorbed_mla.patch_module(made)
    cache = InPlaceCache(config, stored="int8" if kind == "int8" else "model")
    held = copy.cache.kept()
    dequantized = [x.materialized() if hasattr(x, "materialized") else x for x in (held.keys, held.values)]
    cache.update(*(x.clone() for x in dequantized), 0)
    size = spec.kv.rope_dim if isinstance(spec.kv, Latent) else spec.kv.head_dim
    turn = (torch.ones(1, 1, size).to(DTYPE), torch.zeros(1, 1, size).to(DTYPE))

    def step() -> Tensor:
        out: Tensor = made(copy.x, position_embeddings=turn, attention_mask=None, cache=cache)[0]
        cache.crop(-1)
        return out

    return step


def check(copy: Copy, name: str) -> None:
    """Refuses to time what does not compute the same."""
    found = copy.step()
    copy.back()
    plain = copy.step(backend="plain").float()
    copy.back()
    error = float((found.float() - plain).abs().max() / plain.abs().max())
    if not error < 2e-2:  # bfloat16 rounds to 2^-8, twice
        print(f"no figures: {name} differs from its plain twin by {error:.1e}", file=sys.stderr)
        raise SystemExit(2)


def timed(step: Step) -> float:
    """Seconds of one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def rounds(copies: list[Copy], kind: str, seconds: float) -> list[dict[str, float]]:
    """Seconds of each, in a random order, again and again."""
    draw, found = random.Random(0), []  # noqa: S311
    alone, bare, rival = [kernel(c) for c in copies], [products(c) for c in copies], [theirs(c, kind) for c in copies]
    until = time.perf_counter() + seconds
    while len(found) < LEAST_ROUNDS or time.perf_counter() < until:
        at, took = len(found) % len(copies), {}
        copy = copies[at]
        steps: dict[str, Step] = {"kernel": alone[at], "products": bare[at], "transformers": rival[at]}
        steps |= {"whole": copy.step, "attention": copy.step}
        order = list(steps)
        draw.shuffle(order)
        for name in order:
            if name == "attention":
                with without_products(copy):
                    took[name] = timed(copy.step)
            else:
                took[name] = timed(steps[name])
            if name in ("whole", "attention"):
                copy.back()
        found.append(took)
    return found


def spread(values: list[float]) -> tuple[float, str]:
    """The median, and it with the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return middle, f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def main() -> int:
    """Times each row, prints the page."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60.0
    torch.manual_seed(0)
    before, slower, lines = os.getloadavg()[0], [], []
    with torch.inference_mode():
        for name, (spec, kind) in ROWS.items():
            copies = [Copy(spec, kind) for _ in range(COPIES)]
            check(copies[0], name)
            found = rounds(copies, kind, seconds)
            median = {each: statistics.median(took[each] for took in found) for each in found[0]}
            part, part_text = spread([took["attention"] / took["kernel"] for took in found])
            whole, whole_text = spread([took["whole"] / (took["kernel"] + took["products"]) for took in found])
            _, rival_text = spread([took["whole"] / took["transformers"] for took in found])
            slower += [name] if max(part, whole) > MOST_RATIO else []
            lines.append(
                f"| {name} | {len(found)} | {1e3 * median['kernel']:.2f} | {1e3 * median['products']:.2f} | {part_text} | "
                f"{whole_text} | {rival_text} |"
            )
    cpu = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in cpu if line.startswith("model name")), platform.processor())
    print(HEAD.format(cached=CACHED))
    print(
        f"Last written on {date.today().isoformat()} with torch {torch.__version__} and Python {platform.python_version()}, "
        f"{torch.get_num_threads()} threads, on {model or platform.machine()}; load {before:.1f} before and "
        f"{os.getloadavg()[0]:.1f} after, of which this took {torch.get_num_threads()}.\n"
    )
    print(
        "| layer | rounds | kernel, ms | products, ms | attention / kernel | whole / (kernel + products) | whole / transformers |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    print("\n".join(lines))
    print(f"\nBeyond {MOST_RATIO} times: {', '.join(slower) or 'nowhere'}.")
    return 1 if slower else 0


if __name__ == "__main__":
    raise SystemExit(main())
