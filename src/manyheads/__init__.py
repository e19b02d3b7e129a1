"""manyheads: price the attention heads of real models, see what they do, and shrink what they cost.

    stack = manyheads.read("path/to/model")                  a StackSpec, from a config, a header, a name or a sketch
    price = manyheads.price(stack, context_tokens=131_072)     what it costs
    spec = manyheads.AttentionSpec.gqa(4096, 32, 8)            or say what a layer is, and ask the same
    layer = manyheads.Attention(spec)                          the layer itself, in torch

Names are imported when they are first used: `import manyheads` alone costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.checkpoints import read
    from manyheads.cost import price
    from manyheads.errors import BackendError, CheckpointError, ConversionError, ManyheadsError, SpecError
    from manyheads.layer import Attention, MultiheadAttention, mha
    from manyheads.models.enable import cache, disable, enable
    from manyheads.report import Report
    from manyheads.spec import (
        Alibi,
        AttentionSpec,
        Band,
        Bias,
        Bidirectional,
        Block,
        Borrowed,
        Causal,
        Chunk,
        Cross,
        Heads,
        Latent,
        Mlp,
        Moe,
        NoPositions,
        Norm,
        QKNorm,
        RelativeBuckets,
        Rope,
        Self,
        Stack,
        StackSpec,
        State,
        Weight,
        Window,
        weights,
    )

__version__ = "0.1.0.dev0"

__all__ = [
    "Alibi",
    "Attention",
    "AttentionSpec",
    "BackendError",
    "Band",
    "Bias",
    "Bidirectional",
    "Block",
    "Borrowed",
    "Causal",
    "CheckpointError",
    "Chunk",
    "ConversionError",
    "Cross",
    "Heads",
    "Latent",
    "ManyheadsError",
    "Mlp",
    "Moe",
    "MultiheadAttention",
    "NoPositions",
    "Norm",
    "QKNorm",
    "RelativeBuckets",
    "Report",
    "Rope",
    "Self",
    "SpecError",
    "Stack",
    "StackSpec",
    "State",
    "Weight",
    "Window",
    "cache",
    "disable",
    "enable",
    "mha",
    "price",
    "read",
    "weights",
]

# All that is not here is a part of a spec, or an error.
_HOMES = {
    "read": "checkpoints",
    "price": "cost",
    "Report": "report",
    "Attention": "layer",
    "MultiheadAttention": "layer",
    "mha": "layer",
    "enable": "models.enable",
    "disable": "models.enable",
    "cache": "models.enable",
}

__getattr__, __dir__ = lazy(
    __name__,
    {name: _HOMES.get(name, "errors" if name.endswith("Error") else "spec") for name in __all__},
)
