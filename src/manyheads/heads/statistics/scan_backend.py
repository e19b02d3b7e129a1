"""Which scan takes a call's tiles: the compiled one where it can, else the plain one."""

from __future__ import annotations

from importlib.util import find_spec

import torch

from manyheads.errors import BackendError
from manyheads.heads.statistics.streaming import Scan
from manyheads.models.door.call import Call
from manyheads.ops import score_rows as rows
from manyheads.quoting import shown

__all__ = ["IMPLEMENTATIONS", "select_scan"]

IMPLEMENTATIONS = ("auto", "torch", "compiled")
_MOST_KEYS = 2**24  # positions are floats there


def select_scan(implementation: str, call: Call) -> Scan:
    """The scan for this call. Raises BackendError for a name that is not known, and for "compiled" where it cannot be."""
    if implementation not in IMPLEMENTATIONS:
        raise BackendError(f"implementation {shown(implementation)} is not one of {', '.join(IMPLEMENTATIONS)}")
    if implementation == "torch":
        return rows.scan
    why = _not_compiled(call)
    if why and implementation == "compiled":
        raise BackendError(f"{call.path}: the compiled scan cannot be used: {why}")
    if why:
        return rows.scan
    from manyheads.kernels.score_rows import compiled_scan

    return compiled_scan


def _not_compiled(call: Call) -> str:
    """Why the compiled scan cannot take this call; "" where it can."""
    if not call.q.is_cpu:
        return f"it runs on a CPU, and the model is on {call.q.device}"
    if call.q.dtype == torch.float64:
        return "it computes in float32, and the model is in float64"
    if call.k.shape[2] >= _MOST_KEYS:
        return f"it counts {_MOST_KEYS:,} keys at most, found {call.k.shape[2]:,}"
    if find_spec("numba") is None:
        return "numba is not installed"
    return ""
