"""Random requests to the decode kernel, and the answer in float64 that each must come close to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from manyheads.kernels.attend import decode
from manyheads.kernels.keys import Keys
from manyheads.ops import softmax
from manyheads.ops.masks import dense

__all__ = ["KernelRequest", "check", "kernel_requests"]

LAYOUTS = ("bksd", "bskd", "interleaved", "sliced", "expanded", "room", "joint")


@dataclass(frozen=True)
class KernelRequest:
    """One call: shapes, how the cache lies in memory, who sees what, and all that acts on the logits."""

    batch: int
    group: int
    kv_heads: int
    queries: int
    keys: int
    sizes: tuple[int, int]
    dtype: torch.dtype
    q_dtype: torch.dtype
    layout: str
    mask: str
    extras: frozenset[str] = field(default_factory=frozenset)
    threads: int = 1
    sharpness: float = 1.0
    seed: int = 0


def kernel_requests(*, sizes: list[tuple[int, int]], longest: int = 700) -> st.SearchStrategy[KernelRequest]:
    """Requests with heads of these sizes."""
    return st.builds(
        KernelRequest,
        batch=st.integers(1, 3),
        group=st.sampled_from([1, 1, 2, 3, 4, 5, 7, 8, 13]),
        kv_heads=st.integers(1, 4),
        queries=st.one_of(st.just(1), st.integers(1, 16)),
        keys=st.one_of(st.integers(1, 40), st.integers(1, longest)),
        sizes=st.sampled_from(sizes),
        dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.int8]),
        q_dtype=st.sampled_from([torch.float32, torch.float32, torch.bfloat16, torch.float16]),
        layout=st.sampled_from(LAYOUTS),
        mask=st.sampled_from(["causal", "window", "ragged", "holes", "none"]),
        extras=st.frozensets(st.sampled_from(["bias", "head bias", "alibi", "softcap", "sinks"]), max_size=3),
        threads=st.integers(1, 3),
        sharpness=st.sampled_from([0.1, 1.0, 4.0]),
        seed=st.integers(0, 2**20),
    )


def check(asked: KernelRequest) -> None:
    """The kernel's answer within the rounding of float32 sums, and of the dtype that it is returned in."""
    draw = torch.Generator().manual_seed(asked.seed)
    b, h, t, s = asked.batch, asked.group * asked.kv_heads, asked.queries, asked.keys
    q = (torch.randn(b, h, t, asked.sizes[0], generator=draw) * asked.sharpness).to(asked.q_dtype)
    (k, k_scale), (v, v_scale) = _cache(asked, draw)
    keys, hidden = _visible(asked, draw)
    seen = _table(keys, s) & (hidden[:, 0] == 0)
    options = _extras(asked, draw)
    bias = options.pop("bias", None)
    alibi = options.pop("slopes", None)
    told = dict(options)
    if asked.mask == "holes":
        told["bias"] = hidden if bias is None else hidden + bias
    elif bias is not None:
        told["bias"] = bias
    if alibi is not None:
        told |= {"slopes": alibi, "positions": torch.arange(s - t, s)[None]}
    scale = asked.sizes[0] ** -0.5
    found = decode(
        q, k, v, keys, scale=scale, k_scale=k_scale, v_scale=v_scale, threads=asked.threads, **told
    )  # fmt: skip
    wide = [x.double() if c is None else x.double() * c.double()[..., None] for x, c in ((k, k_scale), (v, v_scale))]
    told = {name: x.double() if isinstance(x, Tensor) else x for name, x in options.items()}
    whole = None if bias is None else bias.double()
    if alibi is not None:
        distance = (torch.arange(s - t, s)[:, None] - torch.arange(s)).abs().double()
        whole = (0 if whole is None else whole) - alibi.double()[None, :, None, None] * distance
    expected = softmax.attention(q.double(), *wide, scale=scale, visible=dense(seen[:, None]), bias=whole, **told)
    _compare(found, expected, wide[1], asked)


def _cache(asked: KernelRequest, draw: torch.Generator) -> list[tuple[Tensor, Tensor | None]]:
    made = []
    for size in asked.sizes:
        x = torch.randn(asked.batch, asked.kv_heads, asked.keys, size, generator=draw)
        scale = None
        if asked.dtype == torch.int8:
            scale = x.abs().amax(-1) / 127
            x = (x / scale[..., None]).round()
        made.append((_laid_out(x.to(asked.dtype), asked.layout), scale))
    if asked.layout == "joint":  # values are the beginning of the keys, as in MLA
        wide, narrow = sorted(asked.sizes, reverse=True)
        if wide == asked.sizes[0]:
            k, scale = made[0]
            made[1] = (k[..., :narrow], scale)
    return made


def _laid_out(x: Tensor, layout: str) -> Tensor:
    if layout == "bskd":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "interleaved":
        return x.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3)
    if layout == "sliced":
        return torch.cat((x, torch.full_like(x, 3)), 3)[..., : x.shape[3]]
    if layout == "expanded":
        return x[:1].expand(x.shape[0], -1, -1, -1)
    if layout == "room":  # what is behind the tokens of a growing cache may be anything
        room = torch.full((*x.shape[:2], 37, x.shape[3]), 127 if x.dtype == torch.int8 else torch.nan).to(x.dtype)
        return torch.cat((x, room), 2)[:, :, : x.shape[2]]
    return x


def _visible(asked: KernelRequest, draw: torch.Generator) -> tuple[Keys, Tensor]:
    """The bounds, and what is hidden between them."""
    b, t, s = asked.batch, asked.queries, asked.keys
    hidden = torch.zeros(b, 1, t, s)
    if asked.mask == "none":
        return Keys(torch.zeros(b, t, dtype=torch.int64), torch.full((b, t), s)), hidden
    if asked.mask == "ragged":
        ends = torch.randint(0, s + 1, (2, b, t), generator=draw)
        return Keys(ends.amin(0), ends.amax(0)), hidden
    window = int(torch.randint(1, s + 1, (), generator=draw)) if asked.mask == "window" else None
    keys = Keys.causal(b, min(t, s), s, window=window)
    if t > s:  # more queries than keys: the first see nothing
        pad = torch.zeros(b, t - s, dtype=torch.int64)
        keys = Keys(torch.cat((pad, keys.low), 1), torch.cat((pad, keys.high), 1))
    if asked.mask == "holes":
        hidden = torch.where(torch.rand(b, 1, t, s, generator=draw) < 0.4, -torch.inf, 0.0)
    return keys, hidden


def _table(keys: Keys, s: int) -> Tensor:
    n = torch.arange(s)
    return (n >= keys.low[..., None]) & (n < keys.high[..., None])


def _extras(asked: KernelRequest, draw: torch.Generator) -> dict[str, Any]:
    b, h, t, s = asked.batch, asked.group * asked.kv_heads, asked.queries, asked.keys
    made: dict[str, Any] = {}
    if "head bias" in asked.extras:
        made["bias"] = torch.randn(1, h, 1, s, generator=draw)
    elif "bias" in asked.extras:
        made["bias"] = torch.randn(b, 1, t, s, generator=draw)
    if "alibi" in asked.extras:
        made["slopes"] = torch.rand(h, generator=draw)
    if "softcap" in asked.extras:
        made["softcap"] = 2.5
    if "sinks" in asked.extras:
        made["sinks"] = torch.randn(h, generator=draw)
    return made


def _compare(found: Tensor, expected: Tensor, values: Tensor, asked: KernelRequest) -> None:
    assert found.dtype == asked.q_dtype
    assert found.shape == expected.shape
    rounding = {torch.float32: 0.0, torch.bfloat16: 2**-8, torch.float16: 2**-11}[asked.q_dtype]
    # logits and sums of float32 are off by their rounding, which grows with how far logits reach
    reach = 24 * (1 + asked.sharpness) + (asked.keys if "alibi" in asked.extras else 0)
    # ALiBi's product, its sum and a bias round logits as far out as they reach, half a unit each; weights above and below
    # the line of a quotient are off by as much: 2 x 3 halves
    roundings = 3 if "alibi" in asked.extras else 1
    largest = float(values.abs().max()) * 2**-23 * reach * roundings
    bound = largest + rounding * expected.abs() + (1e-7 if asked.q_dtype == torch.float16 else 0)
    error = (found.double() - expected).abs()
    assert bool((error <= bound).all()), f"{asked}: {float((error - bound).max())} above the bound"
    nothing = expected.abs().amax(-1) == 0
    assert not found[nothing].abs().any()
