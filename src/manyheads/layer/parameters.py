"""A layer's parameters, made from the inventory of its spec: names, shapes and first values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from manyheads.errors import SpecError
from manyheads.spec import AttentionSpec, Weight, to_text, weights

__all__ = ["load", "parameter_name", "register", "reset"]

# Axes that a weight sums over, where it is not the last one alone.
_INPUT_AXES = {"o": ("y", "v"), "q_map": ("q",), "k_map": ("q",)}


def parameter_name(weight: Weight | str) -> str:
    """The attribute, and the key in state_dict, of a canonical weight: "q.bias" is `q_bias`."""
    return (weight if isinstance(weight, str) else weight.name).replace(".", "_")


def register(
    module: nn.Module, spec: AttentionSpec, *, dtype: torch.dtype | None, device: torch.device | str | None
) -> None:
    """One parameter a weight of the inventory, in the inventory's shape."""
    for weight in weights(spec):
        values = torch.empty(weight.shape, dtype=dtype, device=device)
        module.register_parameter(parameter_name(weight), nn.Parameter(values))


@torch.no_grad()
def reset(module: nn.Module, spec: AttentionSpec) -> None:
    """First values: Xavier uniform a projection, as `torch.nn.MultiheadAttention`; biases 0; norms that change nothing.

    Decay starts as Mamba-2's: rates between 1 and 16, bias 1. Short convolutions start uniform in ±1/sqrt(taps).
    """
    for weight in weights(spec):
        values = getattr(module, parameter_name(weight))
        stem, _, ending = weight.name.rpartition(".")
        if ending == "weight" and stem.endswith("norm"):
            nn.init.constant_(values, 0.0 if _gain(spec, stem) == "1+w" else 1.0)
        elif ending == "bias" or weight.name == "sinks":
            nn.init.zeros_(values)
        elif weight.name == "decay_rate":
            values.uniform_(1.0, 16.0).log_()
        elif weight.name == "decay_bias":
            nn.init.ones_(values)
        elif weight.name.endswith("conv"):
            values.uniform_(-(weight.shape[-1] ** -0.5), weight.shape[-1] ** -0.5)
        else:
            bound = math.sqrt(6.0 / sum(_fans(weight)))
            values.uniform_(-bound, bound)


def load(module: nn.Module, spec: AttentionSpec, canonical: Mapping[str, Tensor]) -> None:
    """Copy tensors by their canonical names ("q", "q.bias", ...); all of them, each in its shape, or SpecError."""
    wanted = {weight.name: weight for weight in weights(spec)}
    missing, unknown = wanted.keys() - canonical.keys(), canonical.keys() - wanted.keys()
    if missing or unknown:
        raise SpecError(
            f"{to_text(spec)} has {len(wanted)} weights; missing: {', '.join(sorted(missing)) or 'none'}; "
            f"unknown: {', '.join(sorted(unknown)) or 'none'}"
        )
    for name, weight in wanted.items():
        if tuple(canonical[name].shape) != weight.shape:
            raise SpecError(f"{name} must be ({weight.axes}) {weight.shape}, found {tuple(canonical[name].shape)}")
    with torch.no_grad():
        for name in wanted:
            getattr(module, parameter_name(name)).copy_(canonical[name])


def _fans(weight: Weight) -> tuple[int, int]:
    """Numbers that go in and out; a map of its own for every head is counted a head."""
    axes = weight.axes.split()
    summed = _INPUT_AXES.get(weight.name, (axes[-1],))
    into = prod(weight.sizes[axis] for axis in summed)
    out = weight.sizes["f"] if weight.name in ("q_map", "k_map") else weight.elements // into
    return into, out


def _gain(spec: AttentionSpec, stem: str) -> str:
    if stem in ("q_norm", "k_norm"):
        return spec.qk_norm.norm.gain if spec.qk_norm is not None else "w"
    norm = getattr(spec.kv, "norm", None)
    return norm.gain if norm is not None else "w"
