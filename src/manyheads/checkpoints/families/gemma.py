"""Gemma 1 to 3: gains of 1 + w, a head size of its own, tied embeddings; windows on most layers from Gemma 2 on."""

from __future__ import annotations

from manyheads.checkpoints.families.llama import LLAMA
from manyheads.checkpoints.family import like
from manyheads.checkpoints.layouts import LAYER, LLAMA_ATTENTION, NORMS_PER_HEAD, OUTPUT_NORMS, llama_layout, norm

__all__ = ["FAMILIES"]

_FOUR_NORMS = (
    *norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
    *OUTPUT_NORMS[:2],
    *norm("model.layers.{i}.pre_feedforward_layernorm", LAYER + "pre_mlp_norm"),
    *OUTPUT_NORMS[2:],
)

_GEMMA = like(
    LLAMA,
    "gemma",
    defaults={"kv_heads": 16, "head_dim": 256, "tied": True},
    gain="1+w",
    nested_defaults={"vocab_size": 256000, "d_model": 3072, "mlp_width": 24576, "layers": 28, "heads": 16,
                     "context": 8192},  # fmt: skip
)
_GEMMA2 = like(
    _GEMMA,
    "gemma2",
    defaults={
        "kv_heads": 4, "head_dim": 256, "tied": True, "window": 4096, "query_scalar": 256, "softcap": 50.0,
        "head_softcap": 30.0,
    },  # fmt: skip
    norm_places=("pre_attention", "out_attention", "pre_mlp", "out_mlp"),
    windows="odd",
    layout=llama_layout(attention=(*LLAMA_ATTENTION, *NORMS_PER_HEAD), norms=_FOUR_NORMS),
    nested_defaults={"vocab_size": 256000, "d_model": 2304, "mlp_width": 9216, "layers": 26, "heads": 8,
                     "context": 8192},  # fmt: skip
)

FAMILIES = (
    _GEMMA,
    _GEMMA2,
    like(
        _GEMMA2,
        "gemma3",
        "gemma3_text",
        "gemma3",
        defaults={
            "kv_heads": 4, "head_dim": 256, "tied": True, "window": 4096, "query_scalar": 256, "rope_theta": 1e6,
            "local_rope_theta": 1e4,
        },  # fmt: skip
        qk_norm="head",
        windows="pattern",
        window_period=6,
        nested_defaults={**_GEMMA2.nested_defaults, "vocab_size": 262208, "context": 131072},
    ),
)
