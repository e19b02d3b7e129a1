"""Mixtral: Mistral's attention, and in every layer eight experts of which a router picks two."""

from __future__ import annotations

from manyheads.checkpoints.family import Family, Stored
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    HEAD,
    LAYER,
    LLAMA_ATTENTION,
    LLAMA_NORMS,
    LLAMA_PREFIXES,
    ROTARY_BUFFERS,
)

__all__ = ["FAMILIES"]

_EXPERTS = (
    Stored("model.layers.{i}.block_sparse_moe.gate.weight", ((LAYER + "mlp.router", "x m"),)),
    Stored("model.layers.{i}.block_sparse_moe.experts.{x}.w1.weight", ((LAYER + "mlp.experts.gate", "w m"),), each="x"),
    Stored("model.layers.{i}.block_sparse_moe.experts.{x}.w3.weight", ((LAYER + "mlp.experts.up", "w m"),), each="x"),
    Stored("model.layers.{i}.block_sparse_moe.experts.{x}.w2.weight", ((LAYER + "mlp.experts.down", "m w"),), each="x"),
)

FAMILIES = (
    Family(
        name="mixtral",
        model_types=("mixtral",),
        defaults={"kv_heads": 8, "experts": 8, "active": 2, "rope_theta": 1e6, "norm_eps": 1e-5},
        windows="all",
        layout=(*EMBED, *LLAMA_ATTENTION, *_EXPERTS, *LLAMA_NORMS, *FINAL_NORM, *HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
