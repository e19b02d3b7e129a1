"""What a layer and a model are: attention, key/value schemes, positions, masks, stacks, the weight inventory, text."""

from manyheads.lazy import lazy
from manyheads.spec.attention import AttentionSpec, Bias, Borrowed, Cross, Self
from manyheads.spec.inventory import Weight, count, weights
from manyheads.spec.kv import Heads, Latent, State
from manyheads.spec.masks import Band, Bidirectional, Causal, Chunk, Window
from manyheads.spec.norms import Norm, QKNorm
from manyheads.spec.positions import (
    Alibi,
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    NoPositions,
    NoScaling,
    RelativeBuckets,
    Rope,
    YarnScaling,
)
from manyheads.spec.stack import Block, Mlp, Moe, OtherWeight, Stack, StackSpec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from manyheads.spec.jsonform import from_json, to_json
    from manyheads.spec.text import layer_text, parse, parse_stack, to_text

__all__ = [
    "Alibi",
    "AttentionSpec",
    "Band",
    "Bias",
    "Bidirectional",
    "Block",
    "Borrowed",
    "Causal",
    "Chunk",
    "Cross",
    "DynamicScaling",
    "Heads",
    "Latent",
    "LinearScaling",
    "Llama3Scaling",
    "LongRopeScaling",
    "Mlp",
    "Moe",
    "NoPositions",
    "NoScaling",
    "Norm",
    "OtherWeight",
    "QKNorm",
    "RelativeBuckets",
    "Rope",
    "Self",
    "Stack",
    "StackSpec",
    "State",
    "Weight",
    "Window",
    "YarnScaling",
    "count",
    "from_json",
    "layer_text",
    "parse",
    "parse_stack",
    "to_json",
    "to_text",
    "weights",
]

# The written forms are loaded when first used: pricing a model from its config needs none of them.
_LATER = {
    "from_json": "jsonform",
    "to_json": "jsonform",
    "layer_text": "text",
    "parse": "text",
    "parse_stack": "text",
    "to_text": "text",
}

__getattr__, __dir__ = lazy(__name__, _LATER)
