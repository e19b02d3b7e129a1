"""manyheads: price the attention heads of real models, see what they do, and shrink what they cost.

    stack = manyheads.read("llama-2-70b")                       # a StackSpec, from a config, a header, a name or a sketch
    price = manyheads.price(stack, context_tokens=131_072)      # what it costs
    spec = manyheads.AttentionSpec.gqa(512, 8, 2)               # or say what a layer is, and ask the same
    layer = manyheads.Attention(spec)                           # the layer itself, in torch
    loaded = manyheads.load("path/to/model")                    # a real model: model, tokenizer, stack

Names are imported when they are first used: `import manyheads` alone costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from manyheads.lazy import lazy

if TYPE_CHECKING:
    from manyheads.checkpoints import read
    from manyheads.cost import price
    from manyheads.errors import BackendError, CheckpointError, ConversionError, ManyheadsError, SpecError
    from manyheads.heads.effects import head_importance
    from manyheads.heads.pruning import prune
    from manyheads.heads.roles import head_roles
    from manyheads.heads.statistics import head_statistics
    from manyheads.layer import Attention, MultiheadAttention, mha
    from manyheads.models.door.door import open_door
    from manyheads.models.enable import cache, disable, enable
    from manyheads.models.load import Loaded, load
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
    "Loaded",
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
    "head_importance",
    "head_roles",
    "head_statistics",
    "load",
    "mha",
    "open_door",
    "price",
    "prune",
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
    "Loaded": "models.load",
    "load": "models.load",
    "open_door": "models.door.door",
    "head_statistics": "heads.statistics",
    "head_roles": "heads.roles",
    "head_importance": "heads.effects",
    "prune": "heads.pruning",
    "enable": "models.enable",
    "disable": "models.enable",
    "cache": "models.enable",
}

__getattr__, __dir__ = lazy(
    __name__,
    {name: _HOMES.get(name, "errors" if name.endswith("Error") else "spec") for name in __all__},
)
