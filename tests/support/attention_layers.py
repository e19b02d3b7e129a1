"""Layers of every scheme to test, small and never square, and one layer written out by the definition to hold them to."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from manyheads.layer import Attention
from manyheads.layer.caches import Cache, cache_for
from manyheads.spec import (
    Alibi,
    AttentionSpec,
    Band,
    Bidirectional,
    Causal,
    Chunk,
    Cross,
    Heads,
    Latent,
    LinearScaling,
    Llama3Scaling,
    NoPositions,
    Norm,
    QKNorm,
    RelativeBuckets,
    Rope,
    State,
    Window,
    YarnScaling,
)

__all__ = ["CACHED", "SPECS", "cached", "kinds", "layer", "numbers", "table_for", "tokens"]

_LAYER_NORM = Norm("layer", 1e-5, "w", shift=True)


def _gqa(**options: Any) -> AttentionSpec:
    return AttentionSpec.gqa(20, 6, 2, head_dim=8, v_head_dim=5, **options)


def _state(**options: Any) -> AttentionSpec:
    around = {key: options.pop(key) for key in ("mask", "positions", "output_gate", "num_heads") if key in options}
    kv: dict[str, Any] = dict(num_key_heads=2, num_value_heads=4, num_state_heads=4, head_dim=6, feature_dim=6,
                              v_head_dim=5, feature_map="identity", normalised=False)  # fmt: skip
    return AttentionSpec(
        d_model=20, kv=State(**kv | options), scale=6**-0.5,
        **{"num_heads": 4, "mask": Causal(), "positions": NoPositions(), **around},
    )  # fmt: skip


_MLA: dict[str, Any] = {"rank": 12, "nope_dim": 6, "rope_dim": 4, "v_head_dim": 5}

SPECS: dict[str, AttentionSpec] = {
    "mha": AttentionSpec.mha(20, 3, head_dim=8, bias="qkvo"),
    "mha_rope": AttentionSpec.mha(20, 3, head_dim=8, positions=Rope(8), bias="qv"),
    "gqa_partial_rope": _gqa(positions=Rope(4), bias="k"),
    "gqa_interleaved": _gqa(positions=Rope(6, 500.0, "interleaved"), bias="o"),
    "mqa_alibi": AttentionSpec.gqa(20, 6, 1, head_dim=8, v_head_dim=5, positions=Alibi()),
    "buckets": _gqa(positions=RelativeBuckets(8, 20, two_sided=False)),
    "buckets_both_ways": _gqa(positions=RelativeBuckets(8, 20, two_sided=True), mask=Bidirectional()),
    "rope_linear": _gqa(positions=Rope(4, scaling=LinearScaling(4.0))),
    "rope_llama3": _gqa(positions=Rope(8, scaling=Llama3Scaling(8.0, 1.0, 4.0, 16))),
    "rope_yarn": _gqa(positions=Rope(8, scaling=YarnScaling(4.0, 16))),
    "window": _gqa(positions=Rope(4), mask=Window(4)),
    "chunk": _gqa(positions=Rope(4), mask=Chunk(4)),
    "alibi_window": _gqa(positions=Alibi(), mask=Window(3)),
    "bidirectional": _gqa(mask=Bidirectional()),
    "band": _gqa(positions=Rope(4), mask=Band(2)),
    "softcap": _gqa(positions=Rope(4), softcap=0.7, scale=2.0),
    "sinks": _gqa(positions=Rope(4), sinks=True, mask=Window(5)),
    "gated": _gqa(positions=Rope(4), output_gate=True),
    "norm_head": _gqa(positions=Rope(4), qk_norm=QKNorm(Norm(gain="1+w"))),
    "norm_each_head": _gqa(positions=Rope(4), qk_norm=QKNorm(Norm("layer", 1e-5), "each_head")),
    "norm_each_head_after": _gqa(positions=Rope(4), qk_norm=QKNorm(_LAYER_NORM, "each_head", "after_rope")),
    "norm_full": _gqa(positions=Rope(4), qk_norm=QKNorm(Norm(), "full")),
    "norm_full_after": _gqa(positions=Rope(4), qk_norm=QKNorm(_LAYER_NORM, "full", "after_rope")),
    "norm_bare": _gqa(positions=Rope(4), qk_norm=QKNorm(Norm(gain="none"), "head", "after_rope")),
    "cross": _gqa(source=Cross(13), mask=Bidirectional(), bias="qkvo"),
    "cross_same_width": _gqa(source=Cross(20), mask=Bidirectional()),
    "mla": AttentionSpec.mla(20, 4, **_MLA),
    "mla_query_latent": AttentionSpec.mla(20, 4, **_MLA, q_rank=7, bias="qkvo"),
    "mla_no_rope": AttentionSpec.mla(20, 3, rank=9, nope_dim=6, rope_dim=0, v_head_dim=4, mask=Window(4)),
    "cross_rope": _gqa(source=Cross(13), mask=Bidirectional(), positions=Rope(4)),
    "cross_alibi": _gqa(source=Cross(13), mask=Bidirectional(), positions=Alibi()),
    "mla_cross": AttentionSpec(
        d_model=20, num_heads=4, kv=Latent(12, 6, 4, 5, 7), positions=Rope(4, layout="interleaved"), mask=Bidirectional(),
        source=Cross(13), scale=0.3,
    ),
    "linear": AttentionSpec.linear(20, 2),
    "linear_both_ways": AttentionSpec.linear(20, 2, mask=Bidirectional()),
    "linear_rope_relu": _state(feature_map="relu", normalised=True, positions=Rope(4)),
    "linear_learned": _state(feature_map="learned", feature_dim=7, normalised=True),
    "linear_more_states": _state(num_state_heads=8),
    "linear_more_readers": _state(num_heads=8),
    "linear_gated": _state(rule="gated", decay="per_head", normalised=True, feature_map="elu+1"),
    "linear_gated_channels": _state(rule="gated", decay="per_channel", output_gate=True),
    "linear_delta": _state(rule="delta", beta="scalar", conv_width=3),
    "linear_gated_delta": _state(rule="gated_delta", decay="per_head", beta="per_head", conv_width=4, norm=Norm(),
                                 output_gate=True),
    "linear_gated_delta_channels": _state(rule="gated_delta", decay="per_channel", beta="per_head"),
}  # fmt: skip

# Those that can go on from a cache: what comes next changes nothing that came before.
CACHED = [name for name, spec in SPECS.items() if not isinstance(spec.mask, Bidirectional | Band)]


def layer(name: str | AttentionSpec, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> Attention:
    """A layer with every parameter drawn: a fresh one's biases are all zero and its gains all one."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    made = Attention(SPECS[name] if isinstance(name, str) else name, dtype=dtype)
    for parameter in made.parameters():
        parameter.data.normal_(0, 0.4)
    return made.eval()


def tokens(batch: int, count: int, width: int = 20, *, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random tokens (b, t, m)."""
    return torch.randn(batch, count, width, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def table_for(spec: AttentionSpec, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    """The keyword that relative buckets need, as the stack would give it; nothing for others."""
    if not isinstance(spec.positions, RelativeBuckets):
        return {}
    shape = (spec.positions.num_buckets, spec.num_heads)
    return {"table": torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(2))}


def kinds(spec: AttentionSpec) -> list[str]:
    """The kinds of cache that are exact for a layer."""
    if isinstance(spec.kv, State):
        return ["growing"]
    return ["growing", "static", *(["rolling"] if isinstance(spec.mask, Window | Chunk) else [])]


def cached(
    kind: str, spec: AttentionSpec, batch: int, *, capacity: int = 40, dtype: torch.dtype = torch.float64
) -> Cache:
    """A cache of `kind` for `spec`."""
    return cache_for(spec, batch=batch, dtype=dtype, kind=kind, capacity=capacity if kind == "static" else None)


def numbers(made: Attention, x: Tensor, memory: Tensor | None = None, *, table: Tensor | None = None) -> Tensor:
    """y (b, t, m) of a float64 layer by the definition: one query, one key, one state at a time, in its own words."""
    spec = made.spec
    heads = _linear(made, x) if isinstance(spec.kv, State) else _softmax(made, x, memory, table)  # (b, t, y, v)
    if spec.output_gate:
        gate = torch.einsum("btm,yvm->btyv", x, made.gate)
        heads = heads * (gate / (1 + (-gate).exp()) if isinstance(spec.kv, State) else 1 / (1 + (-gate).exp()))
    y = torch.einsum("btyv,myv->btm", heads, made.o)
    return y + made.o_bias if spec.bias.o else y


def _softmax(made: Attention, x: Tensor, memory: Tensor | None, table: Tensor | None) -> Tensor:
    spec, source = made.spec, x if memory is None else memory
    q, k, v = (_heads if isinstance(spec.kv, Heads) else _latent)(made, x, source)
    (b, t, h, _), s = q.shape, source.shape[1]
    out = torch.zeros(b, t, h, v.shape[-1], dtype=x.dtype)
    for head in range(h):
        shared = head // (h // k.shape[2])
        for i in range(t):
            seen = [j for j in range(s) if memory is not None or spec.mask.visible(i, j)]
            logits = torch.stack([spec.scale * (q[:, i, head] * k[:, j, shared]).sum(-1) for j in seen], -1)
            if spec.softcap is not None:
                logits = spec.softcap * torch.tanh(logits / spec.softcap)
            logits = logits + torch.tensor([_bias(spec, table, head, i, j) for j in seen], dtype=x.dtype)
            powers = logits.exp()
            total = powers.sum(-1, keepdim=True) + (made.sinks[head].exp() if spec.sinks else 0.0)
            out[:, i, head] = torch.einsum("bs,bsv->bv", powers / total, v[:, seen, shared])
    return out


def _bias(spec: AttentionSpec, table: Tensor | None, head: int, i: int, j: int) -> float:
    if isinstance(spec.positions, Alibi):
        return -_slopes(spec.num_heads)[head] * abs(i - j)
    if isinstance(spec.positions, RelativeBuckets):
        assert table is not None
        return float(table[_bucket(spec.positions, j - i), head])
    return 0.0


def _slopes(n: int) -> list[float]:
    """ALiBi's, as its paper has them: a geometric row for powers of two; else the row below, and every other one above."""
    below = 2 ** math.floor(math.log2(n))
    row = [2 ** (-8 * (i + 1) / below) for i in range(below)]
    return row if below == n else row + _slopes(2 * below)[0::2][: n - below]


def _bucket(positions: RelativeBuckets, distance: int) -> int:
    side = positions.num_buckets // 2 if positions.two_sided else positions.num_buckets
    start = side if positions.two_sided and distance > 0 else 0
    back = abs(distance) if positions.two_sided else max(-distance, 0)
    exact = side // 2
    if back < exact:
        return start + back
    far = exact + int(math.log(back / exact) / math.log(positions.max_distance / exact) * (side - exact))
    return start + min(far, side - 1)


def _heads(made: Attention, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    spec = made.spec
    q = torch.einsum("btm,hqm->bthq", x, made.q) + (made.q_bias if spec.bias.q else 0.0)
    k = torch.einsum("bsm,kqm->bskq", source, made.k) + (made.k_bias if spec.bias.k else 0.0)
    v = torch.einsum("bsm,kvm->bskv", source, made.v) + (made.v_bias if spec.bias.v else 0.0)
    norms = spec.qk_norm
    if norms is not None and norms.place == "before_rope":
        q, k = _qk_norm(made, q, "q"), _qk_norm(made, k, "k")
    q, k = _rotate(spec, q), _rotate(spec, k)
    if norms is not None and norms.place == "after_rope":
        q, k = _qk_norm(made, q, "q"), _qk_norm(made, k, "k")
    return q, k, v


def _qk_norm(made: Attention, x: Tensor, name: str) -> Tensor:
    qk_norm = made.spec.qk_norm
    assert qk_norm is not None
    axes = (-2, -1) if qk_norm.scope == "full" else (-1,)
    return _norm(
        x, qk_norm.norm, axes, getattr(made, f"{name}_norm_weight", None), getattr(made, f"{name}_norm_bias", None)
    )


def _norm(x: Tensor, norm: Norm, axes: tuple[int, ...], gain: Tensor | None, shift: Tensor | None) -> Tensor:
    if norm.kind == "layer":
        x = x - x.mean(axes, keepdim=True)
    x = x / ((x * x).mean(axes, keepdim=True) + norm.eps).sqrt()
    if gain is not None:
        x = x * (gain + 1 if norm.gain == "1+w" else gain)
    return x if shift is None else x + shift


def _rate(rope: Rope, i: int) -> float:
    """The angle a position of pair i, for the scalings that the specs here have; wave lengths as in their papers."""
    rate, scaling = rope.base ** (-2 * i / rope.dim), rope.scaling
    if isinstance(scaling, LinearScaling):
        return rate / scaling.factor
    if isinstance(scaling, Llama3Scaling):
        wave = 2 * math.pi / rate
        low, high = (
            scaling.original_context / scaling.low_freq_factor,
            scaling.original_context / scaling.high_freq_factor,
        )
        if wave > low:
            return rate / scaling.factor
        smooth = (scaling.original_context / wave - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        return rate if wave < high else (1 - smooth) * rate / scaling.factor + smooth * rate
    if isinstance(scaling, YarnScaling):

        def turns(n: float) -> float:
            return rope.dim * math.log(scaling.original_context / (n * 2 * math.pi)) / (2 * math.log(rope.base))

        low, high = max(math.floor(turns(scaling.beta_fast)), 0), min(math.ceil(turns(scaling.beta_slow)), rope.dim - 1)
        ramp = min(max((i - low) / ((high - low) or 0.001), 0.0), 1.0)
        return rate / scaling.factor * ramp + rate * (1 - ramp)
    return rate


def _rotate(spec: AttentionSpec, x: Tensor) -> Tensor:
    """x (b, t, h, d) turned pair by pair, as complex numbers."""
    rope = spec.positions
    if not isinstance(rope, Rope):
        return x
    stretch = 0.1 * math.log(rope.scaling.factor) + 1 if isinstance(rope.scaling, YarnScaling) else 1.0
    turned = x.clone()
    for i in range(rope.dim // 2):
        a, b = (i, i + rope.dim // 2) if rope.layout == "halves" else (2 * i, 2 * i + 1)
        angle = torch.arange(x.shape[1], dtype=x.dtype)[None, :, None] * _rate(rope, i)
        pair = torch.complex(x[..., a], x[..., b]) * torch.polar(torch.full_like(angle, stretch), angle)
        turned[..., a], turned[..., b] = pair.real, pair.imag
    return turned


def _latent(made: Attention, x: Tensor, source: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    spec, kv = made.spec, made.spec.kv
    assert isinstance(kv, Latent)
    if kv.q_rank:
        small = torch.einsum("btm,am->bta", x, made.q_down) + (made.q_down_bias if spec.bias.q else 0.0)
        small = _latent_norm(made, small, "q_down_norm")
        q = torch.einsum("bta,hqa->bthq", small, made.q_up)
    else:
        q = torch.einsum("btm,hqm->bthq", x, made.q) + (made.q_bias if spec.bias.q else 0.0)
    latent = torch.einsum("bsm,cm->bsc", source, made.kv_down) + (made.kv_down_bias if spec.bias.k else 0.0)
    latent = _latent_norm(made, latent, "kv_down_norm")
    k, v = torch.einsum("bsc,hdc->bshd", latent, made.k_up), torch.einsum("bsc,hvc->bshv", latent, made.v_up)
    if kv.rope_dim:
        key = torch.einsum("bsm,rm->bsr", source, made.k_rope) + (made.k_rope_bias if spec.bias.k else 0.0)
        k = torch.cat((k, _rotate(spec, key[:, :, None]).expand(-1, -1, spec.num_heads, -1)), -1)
        q = torch.cat((q[..., : kv.nope_dim], _rotate(spec, q[..., kv.nope_dim :])), -1)
    return q, k, v


def _latent_norm(made: Attention, x: Tensor, name: str) -> Tensor:
    if made.spec.kv.norm is None:
        return x
    return _norm(
        x, made.spec.kv.norm, (-1,), getattr(made, f"{name}_weight", None), getattr(made, f"{name}_bias", None)
    )


def _linear(made: Attention, x: Tensor) -> Tensor:
    spec, kv = made.spec, made.spec.kv
    assert isinstance(kv, State)
    q, k, v = (
        torch.einsum("btm,hdm->bthd", x, getattr(made, name)) + getattr(made, f"{name}_bias", 0.0) for name in "qkv"
    )
    if kv.conv_width:
        q, k, v = (_conv(part, getattr(made, f"{name}_conv")) for part, name in ((q, "q"), (k, "k"), (v, "v")))
    q, k = (_phi(_rotate(spec, part), kv, getattr(made, f"{name}_map", None)) for part, name in ((q, "q"), (k, "k")))
    n, heads, b, count = kv.num_state_heads, spec.num_output_heads, x.shape[0], x.shape[1]
    out = torch.zeros(b, count, heads, kv.v_head_dim, dtype=x.dtype)
    last = count if isinstance(spec.mask, Bidirectional) else 0
    for head in range(heads):
        query, state_head = head // (heads // spec.num_heads), head // (heads // n)
        key, value = state_head // (n // kv.num_key_heads), state_head // (n // kv.num_value_heads)
        S = torch.zeros(b, kv.feature_dim, kv.v_head_dim, dtype=x.dtype)
        z = torch.zeros(b, kv.feature_dim, dtype=x.dtype)
        states = []
        for t in range(count):
            if kv.decay != "none":
                step = torch.einsum("bm,...m->b...", x[:, t], made.decay[state_head]) + made.decay_bias[state_head]
                fade = torch.exp(-made.decay_rate[state_head].exp() * torch.log1p(step.exp())).view(b, -1)
                S, z = S * fade[..., None], z * fade
            write = v[:, t, value]
            if kv.beta != "none":
                strength = x[:, t] @ made.beta[state_head if kv.beta == "per_head" else 0]
                write = (write - torch.einsum("bf,bfv->bv", k[:, t, key], S)) / (1 + (-strength).exp())[:, None]
            S, z = S + k[:, t, key, :, None] * write[:, None], z + k[:, t, key]
            states.append((S, z))
        for t in range(count):
            S, z = states[(last or t + 1) - 1]
            read = torch.einsum("bf,bfv->bv", q[:, t, query], S)
            total = (q[:, t, query] * z).sum(-1, keepdim=True)
            out[:, t, head] = read / torch.where(total == 0, 1.0, total) if kv.normalised else read * spec.scale
    gain, shift = getattr(made, "out_norm_weight", None), getattr(made, "out_norm_bias", None)
    return out if kv.norm is None else _norm(out, kv.norm, (-1,), gain, shift)


def _conv(x: Tensor, taps: Tensor) -> Tensor:
    mixed = torch.zeros_like(x)
    for t in range(x.shape[1]):
        for z in range(taps.shape[-1]):
            back = t - taps.shape[-1] + 1 + z
            if back >= 0:
                mixed[:, t] += x[:, back] * taps[..., z]
    return mixed / (1 + (-mixed).exp())


def _phi(x: Tensor, kv: State, weight: Tensor | None) -> Tensor:
    if weight is not None:
        x = torch.einsum("bthq,hqf->bthf", x, weight).clamp(min=0)
    elif kv.feature_map == "elu+1":
        x = torch.where(x > 0, x + 1, x.exp())
    elif kv.feature_map == "relu":
        x = x.clamp(min=0)
    return x / ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt() if "delta" in kv.rule else x
