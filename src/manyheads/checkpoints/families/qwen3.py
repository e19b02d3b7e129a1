"""Qwen 3, dense and mixture, also inside Qwen3-VL: a norm on each query and key head, a head size of its own, no biases."""

from __future__ import annotations

from manyheads.checkpoints.family import Family
from manyheads.checkpoints.layouts import EXPERTS, LLAMA_LAYOUT, LLAMA_PREFIXES, NORMS_PER_HEAD, ROTARY_BUFFERS

__all__ = ["FAMILIES"]

FAMILIES = (
    Family(
        name="qwen3",
        model_types=("qwen3",),
        defaults={"kv_heads": 32, "head_dim": 128, "use_window": False, "window": 4096, "max_window_layers": 28},
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm="head",
        windows="from_layer",
        layout=(*LLAMA_LAYOUT, *NORMS_PER_HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
    Family(
        name="qwen3_vl_text",
        model_types=("qwen3_vl_text",),
        defaults={"kv_heads": 32, "head_dim": 128, "rope_theta": 5e5},
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm="head",
        layout=(*LLAMA_LAYOUT, *NORMS_PER_HEAD),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
    Family(
        name="qwen3_moe",
        model_types=("qwen3_moe",),
        defaults={"kv_heads": 4, "use_window": False, "window": 4096, "experts": 128, "active": 8, "expert_width": 768},
        bias_fields=(("attention_bias", "qkvo"),),
        qk_norm="head",
        windows="all",
        layout=(*LLAMA_LAYOUT, *NORMS_PER_HEAD, *EXPERTS),
        ignored=ROTARY_BUFFERS,
        prefixes=LLAMA_PREFIXES,
    ),
)
