"""torch's types by the names of `manyheads.cost.dtypes`, the one table of numeric formats, and back."""

from __future__ import annotations

import torch

from manyheads.cost.dtypes import DType, dtype, known_dtype
from manyheads.errors import SpecError

__all__ = ["format_of", "safetensors_name", "torch_dtype"]

# What safetensors stores and nothing here computes in.
_STORED_ONLY = {torch.uint8: "U8", torch.int64: "I64", torch.float8_e5m2: "F8_E5M2"}


def torch_dtype(name: str) -> torch.dtype:
    """The type of a format by any of its names: torch.bfloat16 of "bf16". SpecError for one that torch does not have."""
    found = dtype(name)
    if not found.torch_name:
        raise SpecError(f"torch has no type that holds {found.name}")
    return getattr(torch, found.torch_name)  # type: ignore[no-any-return]


def format_of(kind: torch.dtype) -> DType:
    """The format of a type of torch; SpecError for one that numbers are not kept in here."""
    return dtype(str(kind))


def safetensors_name(kind: torch.dtype) -> str:
    """What a safetensors file calls the type, torch's own word where the format has none for it here."""
    known = known_dtype(str(kind))
    return _STORED_ONLY.get(kind) or (known.safetensors_name if known else str(kind))
