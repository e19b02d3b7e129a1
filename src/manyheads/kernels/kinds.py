"""Which of the storage kinds of `lanes` a type of torch is."""

from __future__ import annotations

from manyheads.kernels import lanes
from manyheads.ops.dtypes import torch_dtype

__all__ = ["FLOATING", "KINDS"]

FLOATING = {
    torch_dtype(name): kind for name, kind in (("fp32", lanes.FP32), ("bf16", lanes.BF16), ("fp16", lanes.FP16))
}
KINDS = FLOATING | {torch_dtype("int8"): lanes.INT8}
