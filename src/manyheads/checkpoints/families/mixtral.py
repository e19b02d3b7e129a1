"""Mixtral: Mistral's attention, and in every layer eight experts of which a router picks two."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import Stored, like
from manyheads.checkpoints.layouts import LAYER, llama_layout

__all__ = ["FAMILIES"]

_MOE = "model.layers.{i}.block_sparse_moe."
_EXPERTS = (
    Stored(_MOE + "gate.weight", ((LAYER + "mlp.router", "x m"),)),
    Stored(_MOE + "experts.{x}.w1.weight", ((LAYER + "mlp.experts.gate", "w m"),), each="x"),
    Stored(_MOE + "experts.{x}.w3.weight", ((LAYER + "mlp.experts.up", "w m"),), each="x"),
    Stored(_MOE + "experts.{x}.w2.weight", ((LAYER + "mlp.experts.down", "m w"),), each="x"),
)

FAMILIES = (
    like(
        LLAMA,
        "mixtral",
        defaults={"kv_heads": 8, "experts": 8, "active": 2, "rope_theta": 1e6, "norm_eps": 1e-5},
        bias_fields=(),
        windows="all",
        layout=llama_layout(mlp=_EXPERTS),
    ),
)
