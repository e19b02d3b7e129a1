"""RMSNorm and LayerNorm in float32 or wider, with the gain as it is stored: g, 1 + w, or none."""

from __future__ import annotations

from torch import Tensor

from manyheads.errors import SpecError
from manyheads.ops.precision import wide
from manyheads.quoting import shown
from manyheads.spec.norms import Norm

__all__ = ["layer", "normalise", "rms"]


def rms(x: Tensor, weight: Tensor | None = None, *, eps: float, gain: str = "w", bias: Tensor | None = None) -> Tensor:
    """y = x / sqrt(mean(x²) + eps) · g over the last axis (or the last axes, as many as `weight` has).

    `gain`: "w": g = weight, "1+w": g = 1 + weight (Gemma), "none": g = 1. Cast back after the gain.
    Source: arXiv 1910.07467.
    """
    axes = _axes(x, weight)
    wider = x.to(wide(x.dtype))
    return _scaled(wider * (wider.square().mean(axes, keepdim=True) + eps).rsqrt(), x, weight, gain, bias)


def layer(
    x: Tensor, weight: Tensor | None = None, *, eps: float, gain: str = "w", bias: Tensor | None = None
) -> Tensor:
    """y = (x - mean(x)) / sqrt(var(x) + eps) · g + bias over the last axes, as in `rms`. Source: arXiv 1607.06450."""
    axes = _axes(x, weight)
    wider = x.to(wide(x.dtype))
    wider = wider - wider.mean(axes, keepdim=True)
    return _scaled(wider * (wider.square().mean(axes, keepdim=True) + eps).rsqrt(), x, weight, gain, bias)


def normalise(x: Tensor, norm: Norm, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """The norm that a spec describes."""
    return (rms if norm.kind == "rms" else layer)(x, weight, eps=norm.eps, gain=norm.gain, bias=bias)


def _axes(x: Tensor, weight: Tensor | None) -> tuple[int, ...]:
    axes = 1 if weight is None else weight.dim()
    if weight is not None and tuple(x.shape[-axes:]) != tuple(weight.shape):
        raise SpecError(f"a gain of shape {tuple(weight.shape)} does not fit the last axes of {tuple(x.shape)}")
    return tuple(range(-axes, 0))


def _scaled(y: Tensor, x: Tensor, weight: Tensor | None, gain: str, bias: Tensor | None) -> Tensor:
    if gain not in ("w", "1+w", "none"):
        raise SpecError(f"gain must be one of w, 1+w, none; found {shown(gain)}")
    if (weight is None) != (gain == "none"):
        raise SpecError(f"gain {gain} {'needs a' if weight is None else 'has no'} weight")
    if weight is not None:
        y = y * (weight.to(y.dtype) if gain == "w" else 1.0 + weight.to(y.dtype))
    return (y if bias is None else y + bias.to(y.dtype)).to(x.dtype)
