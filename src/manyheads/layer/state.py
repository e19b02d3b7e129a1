"""Linear attention as a layer: short convolution, features, decay and writing strength, the running state, its gate.

    q, k, v = silu(conv(x W))  where there is a convolution;  phi(q), phi(k), of unit length under the delta rules
    decay   = -exp(decay_rate) · softplus(x W_decay + decay_bias)   the logarithm of what a state keeps
    beta    = sigmoid(x W_beta)
    y       = norm(heads) · silu(x W_gate)

as Qwen3-Next and the gated delta networks have them (arXiv 2412.06464); without any of these, arXiv 2006.16236.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, silu, softplus

from manyheads.errors import SpecError
from manyheads.layer.caches.state import StateCache
from manyheads.layer.heads import Rotation, projected
from manyheads.ops import linear as rules
from manyheads.ops.norm import normalise
from manyheads.ops.precision import wide
from manyheads.spec import AttentionSpec, Bidirectional, State, to_text

__all__ = ["FORMS", "attend", "check"]

FORMS = ("auto", "recurrent", "chunked", "quadratic")
_UNIT_EPS = 1e-6  # as in DeltaNet's and Qwen3-Next's code


def check(spec: AttentionSpec) -> None:
    """Raise for combinations that have no meaning as a layer."""
    kv = spec.kv
    assert isinstance(kv, State)
    if kv.normalised and "delta" in kv.rule:
        raise SpecError(
            f"{to_text(spec)}: rule {kv.rule} takes back what it wrote and has no running norm to divide by"
        )
    if isinstance(spec.mask, Bidirectional) and (kv.rule != "sum" or kv.conv_width):
        raise SpecError(
            f"{to_text(spec)}: rule {kv.rule} and short convolutions go one way; a mask of both needs rule sum"
        )


def attend(
    layer: nn.Module,
    x: Tensor,
    *,
    rotation: Rotation | None,
    keep: Tensor | None,
    cache: StateCache | None,
    positions: Tensor | None,
    form: str,
) -> Tensor:
    """Heads (b, y, t, v) of tokens x (b, t, m), after their norm; `keep` (b, t), True = a token. Moves `cache` on."""
    spec: AttentionSpec = layer.spec
    kv: State = layer.spec.kv
    q, k, v, inputs = _projected(layer, x, keep, cache)
    if rotation is not None:
        q, k = rotation(q), rotation(k)
    q, k = (_features(part, kv, getattr(layer, name, None)) for part, name in ((q, "q_map"), (k, "k_map")))
    v = v.repeat_interleave(kv.num_state_heads // kv.num_value_heads, dim=1)
    out, state = _form(form, x.shape[1], spec)(
        q, k, v, rule=kv.rule, scale=1.0 if kv.normalised else spec.scale, normalised=kv.normalised,
        decay=_decay(layer, x), beta=_beta(layer, x), keep=keep, state=None if cache is None else cache.state,
    )  # fmt: skip
    if cache is not None:
        cache.advance(state, inputs, x.shape[1], positions=positions)
    if kv.norm is None:
        return out
    return normalise(out, kv.norm, getattr(layer, "out_norm_weight", None), getattr(layer, "out_norm_bias", None))


def _projected(
    layer: nn.Module, x: Tensor, keep: Tensor | None, cache: StateCache | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q (b,h,t,q), k (b,k,t,q), v (b,j,t,v), convolved where there is a convolution; and the inputs it must remember."""
    parts = [projected(x, getattr(layer, name), getattr(layer, f"{name}_bias", None)) for name in ("q", "k", "v")]
    kv: State = layer.spec.kv
    if not kv.conv_width:
        return (*parts, x.new_zeros(x.shape[0], 0, 0))
    flat = torch.cat([part.transpose(2, 3).flatten(1, 2) for part in parts], 1)  # (b, channels, t)
    past, count = kv.conv_width - 1, x.shape[1]
    before = flat.new_zeros(*flat.shape[:2], past) if cache is None else cache.inputs.to(flat.dtype)
    taps = torch.cat([getattr(layer, f"{name}_conv").flatten(0, 1) for name in ("q", "k", "v")])
    if keep is None:
        mixed, inputs = _convolved(torch.cat((before, flat), 2), taps, count)
    else:
        mixed, inputs = _convolved_between(before, flat, taps, keep)
    back = silu(mixed).split([part.shape[1] * part.shape[3] for part in parts], 1)
    q, k, v = (
        one.unflatten(1, (part.shape[1], part.shape[3])).transpose(2, 3) for one, part in zip(back, parts, strict=True)
    )
    return q, k, v, inputs


def _convolved(flat: Tensor, taps: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The last `count` tokens of (b, channels, t) each mixed with those before it, and the inputs that the next one needs."""
    width = taps.shape[1]
    mixed = torch.stack([flat[:, :, i : i + count] * taps[:, i, None] for i in range(width)]).sum(0)
    return mixed, flat[:, :, flat.shape[2] - width + 1 :]


def _convolved_between(before: Tensor, flat: Tensor, taps: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
    """The same where only those of `keep` (b, t) are tokens: the others go to the front of all, so that none of them stands
    between a token and those before it, and come back as they are."""
    past, count = before.shape[2], flat.shape[2]
    real = torch.cat((keep.new_ones(keep.shape[0], past), keep), 1)
    order = real.to(torch.int8).argsort(dim=1, stable=True)
    joined = torch.cat((before, flat), 2)
    moved = joined.gather(2, order[:, None].expand(-1, joined.shape[1], -1))
    mixed, inputs = _convolved(pad(moved, (past, 0)), taps, past + count)
    place = order.argsort(1)[:, None, past:]
    return mixed.gather(2, place.expand(-1, mixed.shape[1], -1)), inputs


def _features(x: Tensor, kv: State, weight: Tensor | None) -> Tensor:
    """phi(x) (b, h, t, f); of unit length under the delta rules, which take back what a key wrote."""
    # in order: torch's elu and softplus and their traced doubles disagree on the strides of a strided input's gradient
    mapped = rules.features(x.contiguous(), kv.feature_map, weight)
    if "delta" not in kv.rule:
        return mapped
    wider = mapped.to(wide(x.dtype))
    return (wider * (wider.square().sum(-1, keepdim=True) + _UNIT_EPS).rsqrt()).to(x.dtype)


def _decay(layer: nn.Module, x: Tensor) -> Tensor | None:
    """(b, n, t) or (b, n, t, f): the logarithm of the share kept, never above 0, in float32 or wider."""
    if layer.spec.kv.decay == "none":
        return None
    compute, weight = wide(x.dtype), layer.decay
    step = linear(x, weight.flatten(0, -2)).unflatten(-1, weight.shape[:-1]).movedim(1, 2)
    step = step.to(compute).contiguous()  # as in `_features`
    bias, rate = (part.to(compute).unsqueeze(1) for part in (layer.decay_bias, layer.decay_rate))
    return -rate.exp() * softplus(step + bias)


def _beta(layer: nn.Module, x: Tensor) -> Tensor | None:
    """(b, n or 1, t) in (0, 1): how much of the error a token writes."""
    return None if layer.spec.kv.beta == "none" else torch.sigmoid(linear(x, layer.beta)).transpose(1, 2)


def _form(form: str, count: int, spec: AttentionSpec) -> Callable[..., tuple[Tensor, rules.LinearState]]:
    if isinstance(spec.mask, Bidirectional):
        return partial(rules.quadratic, causal=False)
    chosen = ("recurrent" if count == 1 else "chunked") if form == "auto" else form
    return {"recurrent": rules.recurrent, "chunked": rules.chunked, "quadratic": rules.quadratic}[chosen]
