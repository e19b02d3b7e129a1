"""What a layer and a model are: attention, key/value schemes, positions, masks, stacks, the weight inventory, text."""

from manyheads.spec.attention import AttentionSpec, Bias, Borrowed, Cross, Self
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
from manyheads.spec.weights import Weight, count, weights

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
    "weights",
]
