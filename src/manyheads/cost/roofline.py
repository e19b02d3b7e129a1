"""How long a step takes at best, and in practice: max(bytes / bandwidth, FLOPs / peak) and a prior above it.

The low end of a range is derived from the maker's (or measured) figures and cannot be beaten. The high end divides it
by what well-tuned programs usually reach, a prior and marked so: it was not measured for the model at hand.
"""

from __future__ import annotations

from typing import Literal, Protocol

from manyheads.errors import SpecError
from manyheads.record import record

__all__ = [
    "COMPUTE_EFFICIENCY",
    "DECODE_EFFICIENCY",
    "Floor",
    "Machine",
    "StepTime",
    "arithmetic_dtype",
    "floor",
    "roofline",
]

# Shares of bandwidth and of peak that serving and training reach in published reports: model-FLOPs utilisation between
# a third and a half (PaLM, arXiv 2204.02311, Table 3: 46%; Llama 3, 2407.21783: 38 to 43%), decoding at half of the
# memory's bandwidth or better. The lower end is taken for the high end of a time.
DECODE_EFFICIENCY = 0.5
COMPUTE_EFFICIENCY = 0.35


class Machine(Protocol):
    """What a roofline needs of a device; `manyheads.facts.hardware.Hardware` and the measured machine have it."""

    @property
    def name(self) -> str: ...
    @property
    def bandwidth_bytes_per_second(self) -> int: ...
    @property
    def peak_flops_per_second(self) -> object: ...


@record
class StepTime:
    """How long a step takes, in seconds, from `low_seconds` to `high_seconds`."""

    arithmetic: str
    """the dtype of its products"""
    compute_seconds: float
    memory_seconds: float
    bound_by: Literal["compute", "memory"]
    low_seconds: float
    low_provenance: Literal["derived"]
    high_seconds: float
    """low / `efficiency_prior`"""
    high_provenance: Literal["prior"]
    efficiency_prior: float


# Weights in block formats are widened before they are multiplied; what is tried, in order, for each kind of element.
_ARITHMETIC = {
    "fp64": ("fp64", "fp32"),
    "fp32": ("fp32",),
    "bf16": ("bf16", "fp16", "fp32"),
    "fp16": ("fp16", "bf16", "fp32"),
    "fp8": ("fp8", "bf16", "fp16", "fp32"),
    "int8": ("bf16", "fp16", "fp32"),
    "int4": ("bf16", "fp16", "fp32"),
}


@record
class Floor:
    """The least time of a step: `seconds`, and whether "memory" or "compute" sets it."""

    memory_seconds: float
    compute_seconds: float

    @property
    def seconds(self) -> float:
        """The larger of the two."""
        return max(self.memory_seconds, self.compute_seconds)

    @property
    def bound_by(self) -> Literal["compute", "memory"]:
        """Which of the two that is."""
        return "memory" if self.memory_seconds >= self.compute_seconds else "compute"


def floor(*, moved_bytes: float, flops: float, bandwidth: float, peak: float) -> Floor:
    """The roofline of a step on a machine that reads `bandwidth` bytes and multiplies `peak` FLOPs a second."""
    return Floor(moved_bytes / bandwidth, flops / peak)


def arithmetic_dtype(peaks: dict[str, int], kind: str, name: str) -> str:
    """The dtype that products run in on a device with `peaks`; SpecError where no peak is known."""
    for candidate in _ARITHMETIC[kind]:
        if candidate in peaks:
            return candidate
    raise SpecError(
        f"hardware {name} states no peak for {kind} arithmetic (found: {', '.join(peaks) or 'none at all'}); "
        "give another weight_dtype= or hardware="
    )


def roofline(machine: Machine, *, flops: int, moved_bytes: int, kind: str, compute_bound_prior: bool) -> StepTime:
    """Times of a step of `flops` FLOPs that moves `moved_bytes`, and what binds it.

    `kind` is the arithmetic of the weights' format; `compute_bound_prior` says whether the high end assumes the
    efficiency of large matrix products or that of decoding.
    """
    peaks = dict(machine.peak_flops_per_second)  # type: ignore[call-overload]
    dtype = arithmetic_dtype(peaks, kind, machine.name)
    least = floor(moved_bytes=moved_bytes, flops=flops, bandwidth=machine.bandwidth_bytes_per_second, peak=peaks[dtype])
    efficiency = COMPUTE_EFFICIENCY if compute_bound_prior else DECODE_EFFICIENCY
    return StepTime(
        dtype, least.compute_seconds, least.memory_seconds, least.bound_by, least.seconds, "derived",
        least.seconds / efficiency, "prior", efficiency,
    )  # fmt: skip
