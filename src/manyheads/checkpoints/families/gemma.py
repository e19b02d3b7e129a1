"""Gemma 1 to 3: gains of 1 + w, a head size of its own, tied embeddings; windows on most layers from Gemma 2 on."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import (
    EMBED,
    FINAL_NORM,
    GATED_MLP,
    HEAD,
    LAYER,
    LLAMA_ATTENTION,
    LLAMA_LAYOUT,
    LLAMA_PREFIXES,
    NORMS_PER_HEAD,
    ROTARY_BUFFERS,
    norm,
)

__all__ = ["FAMILIES"]

_FOUR_NORMS = (
    *norm("model.layers.{i}.input_layernorm", LAYER + "pre_attention_norm"),
    *norm("model.layers.{i}.post_attention_layernorm", LAYER + "out_attention_norm"),
    *norm("model.layers.{i}.pre_feedforward_layernorm", LAYER + "pre_mlp_norm"),
    *norm("model.layers.{i}.post_feedforward_layernorm", LAYER + "out_mlp_norm"),
)
_FOUR_PLACES = ("pre_attention", "out_attention", "pre_mlp", "out_mlp")
_LAYOUT = (*EMBED, *LLAMA_ATTENTION, *NORMS_PER_HEAD, *GATED_MLP, *_FOUR_NORMS, *FINAL_NORM, *HEAD)

FAMILIES = (
    Family(
        name="gemma",
        model_types=("gemma",),
        defaults={"kv_heads": 16, "head_dim": 256, "tied": True},
        gain="1+w",
        bias_fields=(("attention_bias", "qkvo"),),
        layout=LLAMA_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        nested_defaults={"vocab_size": 256000, "d_model": 3072, "mlp_width": 24576, "layers": 28, "heads": 16,
                         "context": 8192},  # fmt: skip
    ),
    Family(
        name="gemma2",
        model_types=("gemma2",),
        defaults={
            "kv_heads": 4, "head_dim": 256, "tied": True, "window": 4096, "query_scalar": 256, "softcap": 50.0,
            "head_softcap": 30.0,
        },  # fmt: skip
        gain="1+w",
        norm_places=_FOUR_PLACES,
        bias_fields=(("attention_bias", "qkvo"),),
        windows="odd",
        layout=_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        nested_defaults={"vocab_size": 256000, "d_model": 2304, "mlp_width": 9216, "layers": 26, "heads": 8,
                         "context": 8192},  # fmt: skip
    ),
    Family(
        name="gemma3",
        model_types=("gemma3_text", "gemma3"),
        defaults={
            "kv_heads": 4, "head_dim": 256, "tied": True, "window": 4096, "query_scalar": 256, "rope_theta": 1e6,
            "local_rope_theta": 1e4,
        },  # fmt: skip
        gain="1+w",
        norm_places=_FOUR_PLACES,
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm="head",
        windows="pattern",
        window_period=6,
        layout=_LAYOUT,
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
        nested_defaults={"vocab_size": 262208, "d_model": 2304, "mlp_width": 9216, "layers": 26, "heads": 8,
                         "context": 131072},  # fmt: skip
    ),
)
