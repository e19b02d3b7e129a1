"""What an export wrote, and how far its logits lie from those of the model whose heads are masked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from manyheads.heads.pruning.export_forms import Form
from manyheads.heads.pruning.plan import Plan
from manyheads.models.store.write import Written

__all__ = ["Exported"]


@dataclass(frozen=True)
class Exported:
    """What was written.

    form, why         the form, and why it is this one
    plan              which heads went
    tensor_bytes      bytes of all tensors in the files; `predicted_bytes`: what the cost model says of them
    before_bytes      what the cost model says of the model as it was
    cache_bytes       of one token more in one sequence, in the stored type; `cache_before_bytes`: as it was
    difference        the largest difference from the logits of the masked model, None where it was not checked;
                      `logits_size`: the largest of those; `checked`: in "float32", or in "float64" where the model
                      magnifies float32's rounding; `float32_difference`: that in float32 in any case, which a user sees
    """

    folder: Path
    form: Form
    plan: Plan
    written: Written
    tensor_bytes: int
    predicted_bytes: int
    before_bytes: int
    cache_bytes: int
    cache_before_bytes: int
    difference: float | None
    logits_size: float | None
    checked: str = ""
    float32_difference: float | None = None

    def __repr__(self) -> str:
        told = f"{self.tensor_bytes:,} of {self.before_bytes:,} bytes of weights"
        cache = f"{self.cache_bytes:,} of {self.cache_before_bytes:,} bytes of cache a token"
        return f"Exported({len(self.plan.new)} heads removed, {self.form.name} form in {self.folder}: {told}, {cache})"
